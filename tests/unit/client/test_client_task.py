"""A task as a command line says it, and which events are meant."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from sandherd.client.cli.choosing import moment, types
from sandherd.client.cli.harness_fields import harness
from sandherd.client.cli.spec import name_in_tree, read_files, variables
from sandherd.client.errors import HerdError
from sandherd.contracts.commands import MAX_FILES_BYTES
from sandherd.contracts.events import EVENTS

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)


def test_files_keep_their_relative_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A relative path keeps its directories in the work tree; one from elsewhere is put at the top."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "a.py").write_text("print(1)")
    assert read_files([Path("src/a.py")]) == {"src/a.py": "print(1)"}
    assert read_files([tmp_path / "src" / "a.py"]) == {"a.py": "print(1)"}
    assert name_in_tree(Path("../up/b.py")) == "b.py"


def test_files_over_the_cap_are_refused_with_what_is_allowed(tmp_path: Path) -> None:
    """Together they may weigh so much; the error says how much, and a huge file is not read to its end."""
    half = tmp_path / "half.txt"
    half.write_text("x" * (MAX_FILES_BYTES // 2))
    other = tmp_path / "other.txt"
    other.write_text("x" * (MAX_FILES_BYTES // 2))
    with pytest.raises(HerdError, match=str(MAX_FILES_BYTES)) as raised:
        read_files([half, other])
    assert raised.value.problem.remedy
    with pytest.raises(HerdError, match=str(MAX_FILES_BYTES)):
        read_files([Path("/dev/zero")])


def test_a_file_that_can_not_be_given_is_named(tmp_path: Path) -> None:
    """Absent, a directory, no text, twice the same name: each is refused with its path and a remedy."""
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


def test_variables_are_taken_as_given_or_from_here() -> None:
    """`K=V` is taken as it is, also with more `=`; `K` alone takes the value it has here."""
    assert variables(["A=1=2", "B=", "C"], {"C": "here"}) == {"A": "1=2", "B": "", "C": "here"}
    with pytest.raises(HerdError) as raised:
        variables(["SECRET"], {})
    assert raised.value.problem.remedy == "write it as NAME=VALUE"


def test_types_are_whole_or_domains() -> None:
    """A type is itself; a domain is all of its types; what is neither is refused with the nearest one."""
    assert types(["agent.tool_use"]) == ["agent.tool_use"]
    for domain in ("message", "message.", "message.*"):
        assert set(types([domain])) == {name for name in EVENTS if name.startswith("message.")}
    with pytest.raises(HerdError) as raised:
        types(["agent.tool_us"])
    assert "agent.tool_use" in (raised.value.problem.remedy or "")


@pytest.mark.parametrize(
    ("given", "ago"), [("90s", 90), ("10m", 600), ("2h", 7200), ("7d", 604_800), ("2026-11-20T11:00:00+00:00", 3600)]
)
def test_a_moment_is_ago_or_exact(given: str, ago: int) -> None:
    """`10m` is ten minutes ago; ISO 8601 is a moment."""
    assert moment(given, NOW) == NOW - timedelta(seconds=ago)


@pytest.mark.parametrize("given", ["yesterday", "10", "-5m", "9999999d", "999999d", "0001-01-01T00:00:00+14:00", ""])
def test_a_moment_that_is_none_is_refused(given: str) -> None:
    """With the forms that are understood."""
    with pytest.raises(HerdError) as raised:
        moment(given, NOW)
    assert "10m" in (raised.value.problem.remedy or "")


def test_a_harness_is_what_the_options_say() -> None:
    """`--ask` and `--deny` are its approvals, `--set` any field: JSON where it can be read so, else a text."""
    said = harness(
        "claude",
        [],
        "fast",
        ask=["Bash", "mcp__*"],
        deny=["WebFetch"],
        fields=["max_turns=20", 'allowed_tools=["Bash"]', "skills=false", "system_prompt=be brief: 1", "approvals={}"],
    )
    assert said == {
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
def test_a_field_that_a_harness_lacks_is_named(kind: str, options: dict[str, Any], field: str) -> None:
    """With a remedy, before anything is sent."""
    with pytest.raises(HerdError) as raised:
        harness(kind, ["true"] if kind == "command" else [], **options)
    assert raised.value.problem.field == field
    assert raised.value.problem.remedy
