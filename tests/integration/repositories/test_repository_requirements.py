"""Requirements of repositories on the spawner's machine: git, and a writable folder."""

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sandherd.contracts.repositories import Repository
from sandherd.contracts.requests import GIT, MIRRORS, ExamineSpawner, PartKind
from sandherd.contracts.subjects import Principal
from sandherd.stack.broker import Broker
from spawner.main import compose
from spawner.repositories.git import GitError, GitFault, run_git
from spawner.repositories.git_requirements import git_problem, problems
from tests.integration.spawner.conftest import ProjectUser, home
from tests.patience import PATIENCE
from tests.polling import eventually

__all__ = ["home"]
MISSING = "git is not installed on the spawner's machine"


@pytest.fixture
async def person(herd: Broker, tmp_path: Path) -> AsyncIterator[ProjectUser]:
    async with herd.bus(Principal.CLIENT, project="p1") as bus:
        someone = ProjectUser(bus, eventually, tmp_path / "home")
        await someone.listen()
        yield someone


def without_git(folder: Path) -> Path:
    """A folder with every program of PATH except git."""
    folder.mkdir()
    for place in os.environ["PATH"].split(os.pathsep):
        for program in Path(place).glob("*") if place else ():
            if not program.name.startswith("git") and not (folder / program.name).exists():
                (folder / program.name).symlink_to(program)
    return folder


def of_version(folder: Path, version: str) -> Path:
    """A folder with a git that states this version."""
    folder.mkdir(exist_ok=True)
    (folder / "git").write_text(f'#!/bin/sh\necho "git version {version}"\n')
    (folder / "git").chmod(0o755)
    return folder


async def test_spawner_without_git_starts_and_refuses_repositories(
    herd: Broker, person: ProjectUser, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other tasks run, `examine` names the problem, and repositories are accepted once git is installed."""
    path = os.environ["PATH"]
    monkeypatch.setenv("PATH", str(without_git(tmp_path / "bin")))
    settings = herd.settings(Principal.SPAWNER, home=home, check_interval=0.2, stop_grace=5, isolation="none")
    async with compose(settings).running():
        repository = Repository(url="https://github.com/team/shop.git")
        refused = await person.submit(["true"], repository=repository)
        await person.receives(refused, "task.rejected")
        rejection = person.event_data(refused, "task.rejected")
        assert (rejection["field"], rejection["reason"]) == ("spec.repository", MISSING)
        assert await _warnings(person) == {GIT: MISSING, MIRRORS: None}
        assert (await person.ended(await person.submit(["true"]))).state == "completed"
        monkeypatch.setenv("PATH", path)
        assert await _warnings(person) == {GIT: None, MIRRORS: None}


async def _warnings(person: ProjectUser) -> dict[str, str | None]:
    found = (await person.bus.ask(ExamineSpawner(), "p1", timeout=PATIENCE)).parts
    return {part.name: part.problem for part in found if part.kind is PartKind.WARNING and part.name in {GIT, MIRRORS}}


async def test_git_that_is_removed_meanwhile_is_not_a_missing_repository(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The work is retried; the error "not found" would end it permanently."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(GitError, match=MISSING) as raised:
        await run_git("version")
    assert (raised.value.fault, raised.value.permanent) == (GitFault.UNAVAILABLE, False)


def test_git_that_ignores_its_configuration_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Versions before 2.31 ignore the settings that disable hooks; a replaced program is checked again."""
    assert git_problem() is None
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    of_version(tmp_path, "2.30.2")
    assert "git 2.30 on the spawner's machine is too old: 2.31" in str(git_problem())
    (tmp_path / "git").unlink()
    of_version(tmp_path, "2.31.0.rc1")
    os.utime(tmp_path / "git", ns=(1, 1))
    assert git_problem() is None
    of_version(tmp_path, "")
    assert "does not run" in str(git_problem())


async def test_folder_of_mirrors_that_can_not_be_written_is_named(tmp_path: Path) -> None:
    """A missing folder is created, and the check leaves no file; a file in its place is a problem, also for root."""
    folder = tmp_path / "home" / "repositories"
    assert (await problems(folder))[MIRRORS] is None
    assert list(folder.iterdir()) == []
    folder.rmdir()
    folder.write_text("")
    assert (await problems(folder))[MIRRORS] == f"{folder} can't be written: File exists"
