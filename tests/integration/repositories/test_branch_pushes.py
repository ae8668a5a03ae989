"""What each request pushes, with a real spawner, broker and git server."""

from pathlib import Path

import pytest

from sandherd.bus.connection import RefusedError
from sandherd.contracts.errors import Code
from sandherd.contracts.repositories import Repository
from sandherd.contracts.requests import DeleteBranch, PushBranch
from sandherd.stack.broker import Broker
from tests.integration.repositories.conftest import Upstream, commit, git
from tests.integration.repositories.test_branches import (
    WAITS,
    AgentsClone,
    Make,
    clone_on,
    home,
    person,
    reaches,
    repository,
    spawner,
)
from tests.integration.spawner.conftest import ProjectUser
from tests.patience import PATIENCE
from tests.polling import eventually

__all__ = ["home", "person", "repository", "spawner"]


async def test_paths_to_approve_are_not_pushed_before(
    spawner: Make, person: ProjectUser, repository: Repository, upstream: Upstream, herd: Broker, tmp_path: Path
) -> None:
    """A changed workflow is not pushed until a user approves it, for exactly that commit.

    A request also creates a remote branch again that a user has deleted.
    """
    async with spawner().running():
        task = await person.submit(WAITS, repository=repository)
        sandbox = str((await person.reaches(task, "running")).sandbox)
        view = await reaches(person, task, lambda _: True)
        clone = clone_on(upstream, tmp_path / "sandbox", view.branch)
        made = commit(clone, {".GitHub/workflows/ci.yml": "on: push\n"})
        await AgentsClone(herd, clone, sandbox).save(view.branch, view.base_commit)
        refused = await reaches(person, task, lambda found: bool(found.approve))
        assert refused.approve == [".GitHub/workflows/ci.yml"]
        assert upstream.head(view.branch) == ""
        request = PushBranch(branch=view.id, approved_commit=upstream.first)
        with pytest.raises(RefusedError) as other:
            await person.bus.ask(request, "p1", timeout=PATIENCE)
        assert other.value.problem.code is Code.CONFLICT
        await person.bus.ask(PushBranch(branch=view.id, approved_commit=made), "p1", timeout=PATIENCE)
        await reaches(person, task, lambda found: found.pushed_commit == made)
        git(upstream.path, "update-ref", "-d", f"refs/heads/{view.branch}")
        await person.bus.ask(PushBranch(branch=view.id), "p1", timeout=PATIENCE)
        await eventually(lambda: upstream.head(view.branch) == made)
        await person.bus.ask(DeleteBranch(branch=view.id), "p1", timeout=PATIENCE)
        await reaches(person, task, lambda found: found.state == "deleted")
    assert upstream.head(view.branch) == ""
