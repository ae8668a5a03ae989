"""Tasks join the branch of their ticket, and tasks of other projects may not."""

import asyncio
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry

from sandherd.concurrency import cancel_and_wait, run_until_first
from sandherd.contracts.commands import CommandHarness, SubmitTask, TaskSpec
from sandherd.contracts.envelope import wrap
from sandherd.contracts.repositories import Repository
from sandherd.contracts.requests import DeleteBranch
from sandherd.contracts.subjects import Principal
from sandherd.settings.repositories import BRANCH_PREFIXES
from sandherd.stack.broker import Broker
from sandherd.telemetry.meters import Meters
from spawner.live_state import LiveState
from spawner.repositories.branch_artifacts import BranchArtifacts
from spawner.repositories.branch_names import rules_of
from spawner.repositories.checkout_preparer import CheckoutPreparer
from spawner.repositories.mirrors import Mirrors
from spawner.tasks import task_transitions as of_task
from tests.integration.repositories.conftest import Upstream, commit
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
from tests.integration.repositories.test_kills import TRACE, URL, HeldLease, LocalHosts
from tests.integration.spawner.conftest import ProjectUser
from tests.patience import PATIENCE
from tests.polling import eventually

__all__ = ["home", "person", "repository", "spawner"]


async def test_tasks_that_are_submitted_together_join_one_branch(
    herd: Broker, upstream: Upstream, tmp_path: Path
) -> None:
    """The second task knows the first one's branch, which was created while the second was prepared."""
    project, names = "joined", ("task-a", "task-b")
    async with herd.bus(Principal.SPAWNER) as bus:
        live, artifacts = LiveState(bus, Meters(CollectorRegistry())), BranchArtifacts(bus)
        mirrors = Mirrors(tmp_path / "mirrors", LocalHosts(upstream.path), artifacts, 1024)
        lease: Any = HeldLease()
        rules = rules_of(BRANCH_PREFIXES)
        preparer = CheckoutPreparer(live, lease, mirrors, artifacts, {"process"}, rules=rules)
        for name in names:
            repository = Repository(url=URL, ticket="PROJ-7", join=True)
            spec = TaskSpec(text=f"do {name}", harness=CommandHarness(argv=["true"]), repository=repository)
            command = wrap(
                SubmitTask(task=name, spec=spec), SubmitTask.type, source="/sandherd/client/x", sequence=1,
                project=project, subject=name, time=datetime.now(UTC),
            )  # fmt: skip
            await live.tasks.create(of_task.submitted(command, datetime.now(UTC), TRACE))
        running = asyncio.ensure_future(run_until_first(live.follow(), preparer.run()))

        async def branches() -> list[str | None]:
            held = [await live.tasks.load(f"{project}.{name}") for name in names]
            found = [one.record.branch for one in held if one is not None]
            return found if all(found) else []

        try:
            found = await eventually(branches)
        finally:
            await cancel_and_wait([running])
        assert len(set(found)) == 1


async def test_projects_that_choose_one_name_push_two_branches(
    spawner: Make, person: ProjectUser, repository: Repository, upstream: Upstream, herd: Broker, tmp_path: Path
) -> None:
    """The second project's branch is pushed under another name; no project sees that another one has the name.

    Later commits and its deletion concern its own branch in the repository.
    """
    async with spawner().running(), herd.bus(Principal.CLIENT, project="p2") as bus:
        other = ProjectUser(bus, eventually, tmp_path / "home", project="p2")
        views, clones = [], []
        for number, (user, project) in enumerate(((person, "p1"), (other, "p2"))):
            task = await user.submit(WAITS, repository=repository)
            sandbox = str((await user.reaches(task, "running")).sandbox)
            views.append(await reaches(user, task, lambda _: True))
            clones.append(AgentsClone(herd, tmp_path / f"sandbox-{number}", sandbox, project))
        one, two = views
        assert one.branch == two.branch
        for view, clone, user in zip(views, clones, (person, other), strict=True):
            commit(clone_on(upstream, clone.folder, view.branch), {"shop.py": f"{clone.project}\n"})
            await clone.save(view.branch, view.base_commit)
            await reaches(user, view.tasks[0], lambda found: found.pushed_commit is not None)
        second = await reaches(other, two.tasks[0], lambda found: found.pushed_branch is not None)
        assert re.fullmatch(rf"{two.branch}-[0-9a-z]{{6}}", second.pushed_branch or "")
        commit(clones[1].folder, {"more": "1\n"})
        await clones[1].save(two.branch, two.base_commit)
        second = await reaches(other, two.tasks[0], lambda found: found.commits == 2 and not found.pushing)
        assert second.problem is None
        assert upstream.head(str(second.pushed_branch)) == second.commit
        first = await reaches(person, one.tasks[0], lambda _: True)
        assert (upstream.head(one.branch), first.pushed_branch) == (first.commit, None)
        await bus.ask(DeleteBranch(branch=two.id), "p2", timeout=PATIENCE)
        await reaches(other, two.tasks[0], lambda found: found.state == "deleted")
    assert upstream.head(str(second.pushed_branch)) == ""
    assert upstream.head(one.branch) == first.commit


async def test_other_hosts_are_refused(spawner: Make, person: ProjectUser) -> None:
    """A client can't make the spawner connect to any address."""
    async with spawner().running():
        for number, url in enumerate(
            ("http://169.254.169.254/latest/x.git", "https://10.0.0.1/a/b", "http://127.0.0.1/a")
        ):
            task = await person.submit(["true"], task=f"task-{number}", repository=Repository(url=url))
            await person.receives(task, "task.rejected")
            assert person.event_data(task, "task.rejected")["field"] == "spec.repository.url"
