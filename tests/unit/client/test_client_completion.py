"""Completion in shells: commands without a herd, names from the herd, and nothing if it does not respond."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sandherd.cli import completion
from sandherd.cli.exit_status import status_of

TASK, SANDBOX = "task-01kahc5x3tf8b9n2m4r6v8w0ya", "sbx-01kahc5x3tf8b9n2m4r6v8w0ya"


def completed(shell: str, line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    """What a shell is offered at the end of a line."""
    for name, value in {
        "_SANDHERD_COMPLETE": f"complete_{shell}", "_TYPER_COMPLETE_ARGS": line,
        "_TYPER_COMPLETE_FISH_ACTION": "get-args", "COMP_WORDS": line, "COMP_CWORD": str(len(line.split(" ")) - 1),
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit):
        status_of([])
    shown = capsys.readouterr()
    assert not shown.err
    return shown.out


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shell_completes_commands(
    shell: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The names of subcommands, by the protocol of each shell."""
    assert "cancel" in completed(shell, "sandherd tasks c", monkeypatch, capsys)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("sandherd tasks get ", {TASK}),
        ("sandherd tasks cancel task-01", {TASK}),
        ("sandherd sandboxes get ", {TASK, SANDBOX}),
        ("sandherd sandboxes pause ", {SANDBOX}),
        ("sandherd logs ", {TASK, SANDBOX}),
        ("sandherd logs sbx-", {SANDBOX}),
        ("sandherd events task-02", set()),
    ],
)
def test_shell_completes_names(
    shell: str, line: str, offered: set[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Only names of the command's kind, with the typed beginning, are offered."""

    async def listed(_ctx: Any, lists: list[str]) -> list[str]:
        return [*([SANDBOX] if "sandboxes" in lists else []), *([TASK] if "tasks" in lists else [])]

    monkeypatch.setattr(completion, "_listed", listed)
    shown = completed(shell, line, monkeypatch, capsys)
    assert {name for name in (TASK, SANDBOX) if name in shown} == offered


@pytest.mark.parametrize("credentials", [None, "nonsense"])
def test_without_a_herd_nothing_is_offered(credentials: str | None, tmp_path: Path, monkeypatch: Any) -> None:
    """No error is printed into the line that is being typed, whatever is wrong."""
    monkeypatch.setenv("SANDHERD_HOME", str(tmp_path))
    monkeypatch.setenv("NATS_URL", "nats://127.0.0.1:9")
    monkeypatch.setattr(completion, "SECONDS", 0.0)
    monkeypatch.setattr("sandherd.telemetry.logs.configure", lambda *_: None)
    params: dict[str, Path | None] = {"credentials": None}
    if credentials is not None:
        (tmp_path / "x.creds").write_text(credentials)
        params = {"credentials": tmp_path / "x.creds"}
    ctx: Any = SimpleNamespace(params={}, find_root=lambda: SimpleNamespace(params=params))
    assert completion.all_names(ctx, "") == []
