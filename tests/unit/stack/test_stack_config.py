"""The settings file that a stack was started with: noted for later commands, until the stack is stopped."""

import json
from pathlib import Path

import pytest

from sandherd.contracts.errors import ContractError
from sandherd.settings import CONFIG_VARIABLE, Settings
from sandherd.stack import control, down
from sandherd.stack.home import Home, recorded_config
from sandherd.stack.service_processes import check_runtimes
from sandherd.stack.stack import Stack


@pytest.fixture(autouse=True)
def unnamed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(CONFIG_VARIABLE, raising=False)


def started(tmp_path: Path, outer: dict[str, str]) -> Home:
    """The home of a stack as its clients see it."""
    (tmp_path / "herd.yaml").write_text("max_attempts: 2\n")
    stack = Stack(tmp_path / "home", outer=outer)
    stack.initialise()
    stack.write_context()
    return stack.home


def test_restarted_stack_reads_the_earlier_settings_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The earlier file is read as long as it exists and no other is named."""
    file = tmp_path / "herd.yaml"
    home = started(tmp_path, {CONFIG_VARIABLE: str(file)})
    assert control._environment(home)[CONFIG_VARIABLE] == str(file)
    assert control._environment(home, tmp_path / "given.yaml")[CONFIG_VARIABLE] == str(tmp_path / "given.yaml")
    monkeypatch.setenv(CONFIG_VARIABLE, "/named.yaml")
    assert control._environment(home)[CONFIG_VARIABLE] == "/named.yaml"
    monkeypatch.delenv(CONFIG_VARIABLE)
    file.unlink()
    assert CONFIG_VARIABLE not in control._environment(home)


async def test_down_forgets_only_the_settings_file(tmp_path: Path) -> None:
    """The next `up` uses its own options; the broker has the same port."""
    home = started(tmp_path, {CONFIG_VARIABLE: str(tmp_path / "herd.yaml")})
    before = json.loads(home.context.read_text())
    await down(home.path)
    assert recorded_config(home) is None
    assert json.loads(home.context.read_text()) == {name: before[name] for name in before if name != "config"}


def test_stack_without_a_settings_file_notes_none(tmp_path: Path) -> None:
    """An empty variable counts as none."""
    assert recorded_config(started(tmp_path, {CONFIG_VARIABLE: ""})) is None


async def test_unknown_runtime_is_refused_before_anything_starts(tmp_path: Path) -> None:
    """The error names it and the installed ones; the spawner alone would be restarted until the time limit of `up`."""
    stack = Stack(tmp_path / "home", outer={"SANDHERD_RUNTIMES": "dokcer"})
    with pytest.raises(ContractError, match=r"no runtime 'dokcer'; installed here: .*docker.*process"):
        await stack.start()
    assert stack.processes() == {}
    check_runtimes(Settings(runtime="docker"))
