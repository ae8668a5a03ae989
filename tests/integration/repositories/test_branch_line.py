"""A task with a repository from its submission to the pushed branch, with real workers and git in the sandbox."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from sandherd.contracts.commands import RetryPolicy
from sandherd.contracts.failures import ErrorType
from sandherd.contracts.repositories import Repository
from sandherd.settings import Settings
from spawner.parts import OpenRuntimes
from spawner.runtimes.contract import Runtime
from spawner.runtimes.factory import WORKER
from spawner.runtimes.registry import open_runtimes
from tests.doubles.git_server import GitServer
from tests.integration.repositories.conftest import TOKEN, Upstream, git
from tests.integration.repositories.test_branches import Make, home, person, reaches, repository, spawner
from tests.integration.spawner.conftest import ProjectUser

__all__ = ["home", "person", "repository", "spawner"]
FIX = """
test "$(git branch --show-current)" = "$BRANCH_NAME" || exit 9
echo "total = 2" > shop.py
git commit --quiet --all --message "Fix the total" || exit 8
echo "more" >> README.md
"""


async def without_mirrors(settings: Settings) -> Sequence[Runtime]:
    """Make the process runtime one that mounts no mirror: sandboxes get the branch as a bundle."""
    found = await open_runtimes(settings, WORKER)
    for runtime in found:
        runtime.capabilities = replace(runtime.capabilities, mounts_repository=False)
    return found


@pytest.mark.parametrize(
    ("isolation", "runtimes"),
    [("auto", None), ("none", None), ("auto", without_mirrors)],
    ids=["mount", "none", "bundle"],
)
async def test_work_of_an_agent_is_pushed(
    spawner: Make,
    person: ProjectUser,
    repository: Repository,
    upstream: Upstream,
    server: GitServer,
    isolation: str,
    runtimes: OpenRuntimes | None,
) -> None:
    """The agent's commit and uncommitted changes are pushed; the sandbox never contacts the server, or has a token."""
    async with spawner(isolation=isolation, runtimes=runtimes).running():
        task = await person.submit(["/bin/sh", "-c", FIX], repository=repository)
        ended = await person.ended(task)
        assert (ended.state, ended.error) == ("completed", None)
        view = await reaches(person, task, lambda found: found.pushed_commit is not None)
        assert (view.commits, view.files_changed, view.saving) == (2, 2, False)
    assert upstream.head(view.branch) == view.commit
    shown = git(upstream.path, "show", f"{view.branch}:shop.py"), git(upstream.path, "show", f"{view.branch}:README.md")
    assert shown == ("total = 2", "shop\nmore")
    assert not any(TOKEN in str(event) for event in person.events)
    agents = {request.headers.get("User-Agent", "").split("/")[0] for request in server.requests}
    assert agents == {"git"}
    person.check_sequences()


async def test_retry_continues_the_branch(
    spawner: Make, person: ProjectUser, repository: Repository, upstream: Upstream
) -> None:
    """The second attempt begins with the commits of the first, on the same branch."""
    script = 'echo "$SANDHERD_ATTEMPT" >> attempts; git add .; git commit -qm more; test "$SANDHERD_ATTEMPT" = 2'
    retry = RetryPolicy(max_attempts=2, first_delay_seconds=0.1, also=frozenset({ErrorType.EXIT_STATUS}))
    async with spawner().running():
        task = await person.submit(["/bin/sh", "-c", script], repository=repository, retry=retry)
        assert (await person.ended(task)).attempt == 2
        view = await reaches(person, task, lambda found: found.commits == 2 and found.pushed_commit == found.commit)
    assert git(upstream.path, "show", f"{view.branch}:attempts") == "1\n2"
    assert [event["type"] for event in person.unique()].count("branch.created") == 1


async def test_tasks_of_one_branch_work_one_after_the_other(
    spawner: Make, person: ProjectUser, repository: Repository, upstream: Upstream
) -> None:
    """The second task begins with the commits of the first; until then it states what it waits for."""
    of_ticket = repository.model_copy(update={"ticket": "#7", "join": True})
    script = "until [ -e go ]; do sleep 0.05; done; rm go; echo more >> notes; git add .; git commit -qm more"
    async with spawner().running():
        first = await person.submit(["/bin/sh", "-c", script], repository=of_ticket)
        sandbox = str((await person.reaches(first, "running")).sandbox)
        second = await person.submit(["/bin/sh", "-c", script], repository=of_ticket)

        async def waits() -> bool:
            view = await person.task(second)
            return view is not None and (view.waits_for or "").startswith(f"{first} works on its branch")

        await person.eventually(waits)
        await person.touch(sandbox, "go")
        await person.touch(str((await person.reaches(second, "running")).sandbox), "go")
        await person.ended(second)
        view = await reaches(person, second, lambda found: found.commits == 2 and found.pushed_commit == found.commit)
    assert view.tasks == [first, second]
    assert git(upstream.path, "show", f"{view.branch}:notes") == "more\nmore"
