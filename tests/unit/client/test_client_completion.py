"""Completion in shells: commands without a herd, names from the herd, and nothing if it does not respond."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sandherd.cli import completion
from sandherd.cli.exit_status import run_command
from sandherd.client.named_contexts import NamedContexts, contexts_file, new_context, write_contexts

INSTALLED = {
    "bash": ".bash_completions/sandherd.sh",
    "zsh": ".zfunc/_sandherd",
    "fish": ".config/fish/completions/sandherd.fish",
}
TASK, SANDBOX = "task-01kahc5x3tf8b9n2m4r6v8w0ya", "sbx-01kahc5x3tf8b9n2m4r6v8w0ya"


def completed(shell: str, line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    """The completions that a shell gets for the end of a line."""
    for name, value in {
        "_SANDHERD_COMPLETE": f"complete_{shell}", "_TYPER_COMPLETE_ARGS": line,
        "_TYPER_COMPLETE_FISH_ACTION": "get-args", "COMP_WORDS": line, "COMP_CWORD": str(len(line.split(" ")) - 1),
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit):
        run_command([])
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
        ("sandherd sandboxes pause ", {TASK, SANDBOX}),
        ("sandherd profiles get ", set()),
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

    monkeypatch.setattr(completion, "_request_names", listed)
    shown = completed(shell, line, monkeypatch, capsys)
    assert {name for name in (TASK, SANDBOX) if name in shown} == offered


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
@pytest.mark.parametrize(
    ("line", "kind", "offered"),
    [
        ("sandherd tasks list --batch ", "batches", "batch-one"),
        ("sandherd costs --batch batch-", "batches", "batch-one"),
        ("sandherd tasks list --project ", "projects", "web"),
        ("sandherd projects show w", "projects", "web"),
        ("sandherd schedules pause ", "schedules", "nightly"),
        ("sandherd branches show fea", "branches", "feature/fix-it"),
        ("sandherd branches fetch ", "branches", "feature/fix-it"),
        ("sandherd secrets delete anth", "secrets", "anthropic-key"),
        ("sandherd run --secret ANTHROPIC_API_KEY=an", "secrets", "ANTHROPIC_API_KEY=anthropic-key"),
    ],
)
def test_shell_completes_chosen_names(
    shell: str, line: str, kind: str, offered: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Names of batches, projects, schedules and secrets, which users or programs have chosen."""
    known = {
        "batches": "batch-one",
        "projects": "web",
        "schedules": "nightly",
        "branches": "feature/fix-it",
        "secrets": "anthropic-key",
    }

    async def listed(_ctx: Any, lists: list[str]) -> list[str]:
        return [known[one] for one in lists]

    monkeypatch.setattr(completion, "_request_names", listed)
    shown = completed(shell, line, monkeypatch, capsys)
    assert offered in shown
    assert not any(name in shown for other, name in known.items() if other != kind)


@pytest.mark.parametrize("line", ["sandherd --context p", "sandherd context use p"])
def test_shell_completes_contexts(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The user's contexts, without any herd."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    context = new_context("nats://127.0.0.1:9", tmp_path / "x.creds", None, None)
    write_contexts(contexts_file(), NamedContexts(contexts={"prod": context, "test": context}))
    shown = completed("bash", line, monkeypatch, capsys).split()
    assert shown == ["prod"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
@pytest.mark.parametrize("joined", [False, True])
def test_completion_is_installed_for_the_named_shell(
    shell: str, joined: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whichever shell runs the command; `--show-completion` shows the same script."""
    monkeypatch.setenv("HOME", str(tmp_path))
    words = [f"--install-completion={shell}"] if joined else ["--install-completion", shell]
    assert run_command(words) == 0
    file = tmp_path / INSTALLED[shell]
    assert str(file) in capsys.readouterr().out
    assert run_command(["--show-completion", shell]) == 0
    assert capsys.readouterr().out.strip() == file.read_text().strip()


def test_completion_of_an_unknown_shell_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    """It names the shells that have one."""
    assert run_command(["--install-completion", "csh"]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert all(shell in shown.err for shell in ("csh", "bash", "zsh", "fish"))


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
