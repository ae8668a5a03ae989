"""The settings file that a stack was started with: noted for who comes later, until the stack is ended."""

import json
from pathlib import Path

import pytest

from sandherd.settings import CONFIG_VARIABLE
from sandherd.stack import control, down
from sandherd.stack.home import Home, noted_config
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


def test_what_was_started_anew_reads_the_file_of_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As long as it is there, and nobody names another."""
    file = tmp_path / "herd.yaml"
    home = started(tmp_path, {CONFIG_VARIABLE: str(file)})
    assert control._surroundings(home)[CONFIG_VARIABLE] == str(file)
    assert control._surroundings(home, tmp_path / "given.yaml")[CONFIG_VARIABLE] == str(tmp_path / "given.yaml")
    monkeypatch.setenv(CONFIG_VARIABLE, "/named.yaml")
    assert control._surroundings(home)[CONFIG_VARIABLE] == "/named.yaml"
    monkeypatch.delenv(CONFIG_VARIABLE)
    file.unlink()
    assert CONFIG_VARIABLE not in control._surroundings(home)


async def test_down_forgets_the_file_and_nothing_else(tmp_path: Path) -> None:
    """The next `up` is as it is given; the broker comes back where it was."""
    home = started(tmp_path, {CONFIG_VARIABLE: str(tmp_path / "herd.yaml")})
    before = json.loads(home.context.read_text())
    await down(home.path)
    assert noted_config(home) is None
    assert json.loads(home.context.read_text()) == {name: before[name] for name in before if name != "config"}


def test_a_stack_without_a_file_notes_none(tmp_path: Path) -> None:
    """Nor does one whose variable is empty."""
    assert noted_config(started(tmp_path, {CONFIG_VARIABLE: ""})) is None
