"""Tasks with a repository while spawners are killed: each branch is created once, and all commits are pushed."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sandherd.contracts.commands import CommandHarness, SubmitTask, TaskSpec
from sandherd.contracts.repositories import Repository
from sandherd.contracts.requests import BranchView, ListBranches
from sandherd.contracts.subjects import Principal
from sandherd.stack.broker import Broker
from tests.doubles.git_server import USER, GitServer, git_server
from tests.faults.test_faults_herd import Spawners, being_killed, reply
from tests.integration.repositories.conftest import TOKEN, Upstream, git
from tests.integration.spawner.conftest import ProjectUser
from tests.polling import eventually

AGENT = 'for n in 1 2 3; do echo "$SANDHERD_TASK_ID $n" >> "$SANDHERD_TASK_ID"; git add .; git commit -qm "$n"; done'
KILL_EVERY = 20
"""The number of events after which a spawner is killed: about as many as a task has."""

pytestmark = [pytest.mark.faults, pytest.mark.timeout(1800)]


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[tuple[GitServer, Upstream]]:
    upstream = Upstream(tmp_path)
    async with git_server(upstream.path.parents[1], TOKEN) as running:
        yield running, upstream


@pytest.fixture
async def spawners(
    herd: Broker, tmp_path: Path, server: tuple[GitServer, Upstream], monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Spawners]:
    credentials = tmp_path / "git-credentials"
    credentials.write_text(f"{server[0].url.replace('://', f'://{USER}:{TOKEN}@')}\n")
    monkeypatch.setenv("SANDHERD_REPOSITORY_HOSTS", server[0].url)
    settings = herd.settings(
        Principal.SPAWNER, home=tmp_path / "home", check_interval=0.5, stop_grace=5, isolation="none",
        git_credentials=credentials,
    )  # fmt: skip
    some = Spawners(settings, tmp_path / "log", kill_every=KILL_EVERY)
    try:
        yield some
    finally:
        await some.close()


def task_spec(url: str) -> TaskSpec:
    harness = CommandHarness(argv=["/bin/sh", "-c", AGENT])
    return TaskSpec(text="Add a file", harness=harness, repository=Repository(url=url))


async def branches(person: ProjectUser) -> list[BranchView]:
    return (await reply(person, ListBranches())).branches


@pytest.mark.parametrize("tasks", [2, pytest.param(6, marks=pytest.mark.long)])
async def test_killed_spawners_lose_no_commit_and_create_no_branch_twice(
    spawners: Spawners, server: tuple[GitServer, Upstream], herd: Broker, tmp_path: Path, tasks: int
) -> None:
    """Each task has one branch, with the commits of its completed attempt, at the forge and in the record.

    Some tasks lose their sandboxes, or are refused any, by `sandbox_failures`: those have a branch, and may have no
    commit.
    """
    url, upstream = f"{server[0].url}/team/shop.git", server[1]
    names = [f"task-{number}" for number in range(tasks)]
    async with herd.bus(Principal.CLIENT, project="p1") as bus:
        person = ProjectUser(bus, eventually, tmp_path / "home")
        await person.listen()
        async with being_killed(spawners, person.events) as killing:
            for name in names:
                await person.command(SubmitTask(task=name, spec=task_spec(url)), name)
            ended = {"task.completed", "task.failed"}
            await eventually(
                lambda: killing.done() or all(ended & set(person.types(name)) for name in names), seconds=900
            )
        await spawners.settle()

        views: list[BranchView] = []

        async def all_pushed() -> list[BranchView] | None:
            views[:] = await branches(person)
            done = [view for view in views if not view.saving and not view.pushing]
            # Messages of a killed spawner are redelivered after some seconds.
            pushed = {view.tasks[0] for view in done if view.pushed_commit is not None}
            completed = {name for name in names if "task.completed" in person.types(name)}
            return done if len(done) == len(views) == tasks and completed <= pushed else None

        views = await eventually(all_pushed, lambda: f"all is pushed: {views}; {spawners.log_text()}", seconds=480)
        await person.all_gone()
    completed = {name for name in names if "task.completed" in person.types(name)}
    assert completed
    assert spawners.killed
    check_branches(views, names, completed, upstream)
    person.check_sequences()


def check_branches(views: list[BranchView], names: list[str], completed: set[str], upstream: Upstream) -> None:
    """Check that each task has one branch, whose commits, if any, are at the forge."""
    assert sorted(task for view in views for task in view.tasks) == names
    pushed = [view for view in views if view.pushed_commit is not None]
    remote = git(upstream.path, "for-each-ref", "--format=%(refname:short)", "refs/heads/feature").splitlines()
    assert sorted(remote) == sorted(view.branch for view in pushed)
    assert completed <= {view.tasks[0] for view in pushed}
    for view in pushed:
        assert upstream.head(view.branch) == view.commit == view.pushed_commit
    for view in (view for view in pushed if view.tasks[0] in completed):
        (task,) = view.tasks
        assert git(upstream.path, "show", f"{view.branch}:{task}").splitlines()[-3:] == [f"{task} {n}" for n in "123"]
