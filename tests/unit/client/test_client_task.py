"""A task from command line options, and filters of events."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from sandherd.cli.parse.event_filter import types
from sandherd.cli.parse.harness import harness
from sandherd.cli.parse.task_spec import name_in_tree, read_files, secret_variables, variables
from sandherd.cli.parse.times import moment
from sandherd.client.errors import HerdError
from sandherd.contracts.commands import MAX_FILES_BYTES
from sandherd.contracts.events import EVENTS

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)


def test_files_retain_their_relative_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A relative path keeps its directories in the work tree; one from elsewhere is put at the top."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "a.py").write_text("print(1)")
    assert read_files([Path("src/a.py")]) == {"src/a.py": "print(1)"}
    assert read_files([tmp_path / "src" / "a.py"]) == {"a.py": "print(1)"}
    assert name_in_tree(Path("../up/b.py")) == "b.py"


def test_files_over_the_limit_are_refused_with_the_limit(tmp_path: Path) -> None:
    """The limit is on their sum, and a huge file is not read to its end."""
    half = tmp_path / "half.txt"
    half.write_text("x" * (MAX_FILES_BYTES // 2))
    other = tmp_path / "other.txt"
    other.write_text("x" * (MAX_FILES_BYTES // 2))
    with pytest.raises(HerdError, match=str(MAX_FILES_BYTES)) as raised:
        read_files([half, other])
    assert raised.value.problem.remedy
    with pytest.raises(HerdError, match=str(MAX_FILES_BYTES)):
        read_files([Path("/dev/zero")])


def test_invalid_input_file_is_reported(tmp_path: Path) -> None:
    """A missing file, a directory, a binary and a duplicate name are refused with path and remedy."""
    binary = tmp_path / "a.bin"
    binary.write_bytes(b"\xff\xfe\x00")
    (tmp_path / "d").mkdir()
    twice = tmp_path / "d" / "a.bin"
    twice.write_text("")
    for paths in ([tmp_path / "absent"], [tmp_path / "d"], [binary], [twice, twice]):
        with pytest.raises(HerdError) as raised:
            read_files(paths)
        assert paths[0].name in str(raised.value)
        assert raised.value.problem.remedy


@pytest.mark.parametrize("item", ["FOO=ab", "FOO", "FOO="])
def test_secret_that_is_too_short_to_be_redacted_is_refused(item: str) -> None:
    """A value of fewer than four characters, as for `secrets set`; the error does not have it."""
    with pytest.raises(HerdError, match="FOO has fewer than 4 characters") as raised:
        secret_variables([item], {"FOO": "xyz"})
    assert raised.value.problem.field == "secret_env"
    assert not {"ab", "xyz"} & set(raised.value.line.split())
    assert secret_variables(["FOO=abcd"], {}) == {"FOO": "abcd"}


def test_variables_are_read_from_arguments_or_environment() -> None:
    """`K=V` is used as it is, also with more `=`; `K` alone takes the environment's value."""
    assert variables(["A=1=2", "B=", "C"], {"C": "here"}) == {"A": "1=2", "B": "", "C": "here"}
    with pytest.raises(HerdError) as raised:
        variables(["SECRET"], {})
    assert raised.value.problem.remedy == "write it as NAME=VALUE"


def test_types_are_whole_or_domains() -> None:
    """A type is itself; a domain is all of its types; any other is refused with the nearest one."""
    assert types(["agent.tool_use"]) == ["agent.tool_use"]
    for domain in ("message", "message.", "message.*"):
        assert set(types([domain])) == {name for name in EVENTS if name.startswith("message.")}
    with pytest.raises(HerdError) as raised:
        types(["agent.tool_us"])
    assert "agent.tool_use" in (raised.value.problem.remedy or "")


@pytest.mark.parametrize(
    ("given", "ago"), [("90s", 90), ("10m", 600), ("1.5h", 5400), ("7d", 604_800), ("2026-11-20T11:00:00+00:00", 3600)]
)
def test_time_is_relative_or_exact(given: str, ago: int) -> None:
    """`10m` is ten minutes ago; ISO 8601 is a time."""
    assert moment(given, NOW) == NOW - timedelta(seconds=ago)


@pytest.mark.parametrize("given", ["yesterday", "10", "-5m", "9999999d", "999999d", "0001-01-01T00:00:00+14:00", ""])
def test_invalid_time_is_refused(given: str) -> None:
    """The remedy has the valid forms."""
    with pytest.raises(HerdError) as raised:
        moment(given, NOW)
    assert "10m" in (raised.value.problem.remedy or "")


def test_harness_of_a_plugin_is_submitted_unchanged() -> None:
    """The spawner checks its fields; a program is not demanded here."""
    parsed = harness("echo", [], fields=["times=2", 'where={"a": [null]}'])
    assert parsed == {"kind": "echo", "times": 2, "where": {"a": [None]}}
    assert harness("echo", ["x"], "m", ask=["Bash"]).keys() == {"kind", "argv", "model", "approvals"}


def test_harness_is_built_from_options() -> None:
    """`--ask` and `--deny` are its approvals, `--set` any field: JSON where possible, else a text."""
    parsed = harness(
        "claude",
        [],
        "fast",
        ask=["Bash", "mcp__*"],
        deny=["WebFetch"],
        fields=["max_turns=20", 'allowed_tools=["Bash"]', "skills=false", "system_prompt=be brief: 1", "approvals={}"],
    )
    assert parsed == {
        "kind": "claude",
        "model": "fast",
        "max_turns": 20,
        "allowed_tools": ["Bash"],
        "skills": False,
        "system_prompt": "be brief: 1",
        "approvals": {"tools": {"Bash": "ask", "mcp__*": "ask", "WebFetch": "deny"}},
    }
    rest = harness("claude", [], ask=["Bash"], fields=['approvals={"timeout_seconds": 5, "tools": {"Read": "deny"}}'])
    assert rest["approvals"] == {"timeout_seconds": 5, "tools": {"Read": "deny", "Bash": "ask"}}
    assert harness("command", [], fields=["script=echo hello"]) == {"kind": "command", "script": "echo hello"}


@pytest.mark.parametrize(
    ("kind", "options", "field"),
    [
        ("command", {"ask": ["Bash"]}, "approvals"),
        ("claude", {"fields": ["max_iterations=3"]}, "max_iterations"),
        ("claude", {"fields": ["kind=acp"]}, "kind"),
        ("claude", {"fields": ["max_turns"]}, "set"),
    ],
)
def test_missing_field_of_a_harness_is_reported(kind: str, options: dict[str, Any], field: str) -> None:
    """The error has a remedy, and comes before any request."""
    with pytest.raises(HerdError) as raised:
        harness(kind, ["true"] if kind == "command" else [], **options)
    assert raised.value.problem.field == field
    assert raised.value.problem.remedy
