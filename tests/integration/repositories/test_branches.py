"""Tasks with a repository: a real spawner, broker and git server; the test publishes what a worker saves."""

import os
import re
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from sandherd.bus.connection import Bus, RefusedError
from sandherd.cli import task_submission
from sandherd.cli.options import Format
from sandherd.client.context import Context
from sandherd.client.herd import Herd
from sandherd.client.repositories.source import RepositorySource
from sandherd.contracts.commands import CommandHarness, TaskSpec
from sandherd.contracts.envelope import wrap
from sandherd.contracts.events import ArtifactRef
from sandherd.contracts.events.access import AgentBranchSaved
from sandherd.contracts.repositories import ProjectRepository, Repository
from sandherd.contracts.requests import (
    BranchView,
    ListBranches,
    ProjectDefaults,
    SetProject,
)
from sandherd.contracts.subjects import Principal
from sandherd.service.service import Service
from sandherd.stack.broker import Broker
from sandherd_worker.artifact_records import make_artifact
from spawner import repositories
from spawner.main import compose
from spawner.parts import OpenRuntimes
from tests.doubles.git_server import USER, GitServer
from tests.integration.repositories.conftest import TOKEN, Upstream, commit, git
from tests.integration.spawner.conftest import ProjectUser, home
from tests.patience import PATIENCE
from tests.polling import eventually

pytestmark = pytest.mark.own_broker

__all__ = ["home"]
WAITS = ["/bin/sh", "-c", "until [ -e go ]; do sleep 0.05; done"]
Make = Callable[..., Service]


@pytest.fixture
def spawner(herd: Broker, server: GitServer, tmp_path: Path, home: Path) -> Make:
    """A spawner that may fetch from the server, with its token."""
    credentials = tmp_path / "git-credentials"
    credentials.write_text(f"{server.url.replace('://', f'://{USER}:{TOKEN}@')}\n")

    def make(*, runtimes: OpenRuntimes | None = None, **settings: Any) -> Service:
        own: dict[str, Any] = {"home": home, "check_interval": 0.5, "stop_grace": 5, "isolation": "none"}
        own |= {"repository_hosts": [server.url], "git_credentials": credentials, "max_attempts": 1}
        return compose(herd.settings(Principal.SPAWNER, **own | settings), runtimes=runtimes)

    return make


@pytest.fixture
async def person(herd: Broker, tmp_path: Path) -> AsyncIterator[ProjectUser]:
    async with herd.bus(Principal.CLIENT, project="p1") as bus:
        someone = ProjectUser(bus, eventually, tmp_path / "home")
        await someone.listen()
        yield someone


@pytest.fixture
def repository(server: GitServer) -> Repository:
    return Repository(url=f"{server.url}/team/shop.git")


async def branch_of(person: ProjectUser, task: str) -> BranchView | None:
    found = (await person.bus.ask(ListBranches(task=task), person.project, timeout=PATIENCE)).branches
    return found[0] if found else None


async def reaches(person: ProjectUser, task: str, accepts: Callable[[BranchView], bool]) -> BranchView:
    async def look() -> BranchView | None:
        view = await branch_of(person, task)
        return view if view is not None and accepts(view) else None

    found: BranchView = await eventually(look)
    return found


def clone_on(upstream: Upstream, folder: Path, branch: str) -> Path:
    """The folder of a clone on a new branch, as in a sandbox."""
    git(folder.parent, "clone", "--quiet", str(upstream.path), str(folder))
    git(folder, "checkout", "--quiet", "-b", branch)
    return folder


class AgentsClone:
    """What a sandbox does with its checkout: clone, commit, save."""

    def __init__(self, herd: Broker, folder: Path, sandbox: str, project: str = "p1") -> None:
        self.herd, self.folder, self.sandbox, self.project = herd, folder, sandbox, project

    async def save(self, branch: str, base_commit: str, *, claimed: str | None = None, cut: int = 0) -> str:
        """Publish the branch as a worker does; returns its commit."""
        file = self.folder.with_suffix(".bundle")
        git(self.folder, "bundle", "create", "--quiet", str(file), f"refs/heads/{branch}", f"^{base_commit}")
        head = git(self.folder, "rev-parse", f"refs/heads/{branch}")
        async with self.herd.bus(Principal.WORKER, project=self.project, sandbox=self.sandbox) as bus:
            content = file.read_bytes()
            bundle = await stored(bus, content[: len(content) - cut], self.sandbox, self.project)
            saved = AgentBranchSaved(branch=branch, commit=claimed or head, commits=1, bundle=bundle)
            await bus.publish_event(self._event(saved))
        return head

    def _event(self, data: Any) -> Any:
        return wrap(
            data, data.type, source=f"/sandherd/sandbox/{self.sandbox}", sequence=9_000, project=self.project,
            subject=self.sandbox, sandboxid=self.sandbox, time=datetime.now(UTC),
        )  # fmt: skip


async def stored(bus: Bus, content: bytes, sandbox: str, project: str = "p1") -> ArtifactRef:
    artifact = make_artifact(content, project, sandbox, "application/x-git-bundle")
    for record in artifact.records:
        await bus.publish(record.subject, record.payload, msg_id=record.msg_id)
    return artifact.reference


async def test_branch_exists_before_its_sandbox_and_gets_its_commits(
    spawner: Make, person: ProjectUser, repository: Repository, upstream: Upstream, herd: Broker, tmp_path: Path
) -> None:
    """A sandbox's commits are checked, counted, described by a diff, and pushed; the base is not changed."""
    async with spawner().running():
        task = await person.submit(WAITS, repository=repository.model_copy(update={"ticket": "#7"}))
        sandbox = str((await person.reaches(task, "running")).sandbox)
        view = await reaches(person, task, lambda _: True)
        assert view.branch.startswith("feature/7-do-it")
        assert (view.base, view.base_commit, view.commit, view.pushed_commit) == (
            "main",
            upstream.first,
            upstream.first,
            None,
        )
        clone = clone_on(upstream, tmp_path / "sandbox", view.branch)
        made = commit(clone, {"shop.py": "total = 2\nmore = 1\n"})
        await AgentsClone(herd, clone, sandbox).save(view.branch, view.base_commit)
        after = await reaches(person, task, lambda found: found.pushed_commit is not None)
        await person.touch(sandbox, "go")
        await person.ended(task)
    assert (after.commit, after.pushed_commit, upstream.head(view.branch)) == (made, made, made)
    assert (after.commits, after.files_changed, after.additions, after.deletions) == (1, 1, 2, 1)
    assert after.diff is not None
    assert upstream.head("main") == upstream.first
    kinds = [event["type"] for event in person.unique() if event["type"].startswith("branch.")]
    # The sandbox's own worker saves the file `go` at its end: without this clone's commit, that is refused.
    assert kinds[:3] == ["branch.created", "branch.saved", "branch.pushed"]
    assert not any(TOKEN in str(event) for event in person.events)


async def test_large_files_are_beside_the_mirrors(
    spawner: Make, person: ProjectUser, repository: Repository, upstream: Upstream, herd: Broker, tmp_path: Path,
    home: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Bundle and diff are not written to a container's small temporary folder, and none is left."""
    folder = home / "repositories"
    abandoned, current = folder / ".scratch-old", folder / ".scratch-new"
    for one in (abandoned, current):
        one.mkdir(parents=True)
        (one / "bundle").touch()
    os.utime(abandoned, (0, 0))
    async with spawner().running():
        task = await person.submit(WAITS, repository=repository)
        sandbox = str((await person.reaches(task, "running")).sandbox)
        view = await reaches(person, task, lambda _: True)
        clone = clone_on(upstream, tmp_path / "sandbox", view.branch)
        commit(clone, {"shop.py": "total = 2\n"})
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
        await AgentsClone(herd, clone, sandbox).save(view.branch, view.base_commit)
        after = await reaches(person, task, lambda found: found.pushed_commit is not None)
    assert after.diff is not None
    assert [one.name for one in folder.glob(".scratch-*")] == [current.name]


def test_no_part_uses_the_temporary_folder() -> None:
    """The bundle of a whole repository, for sandboxes without a mirror, needs as much space as the repository."""
    for file in Path(repositories.__file__).parent.glob("*.py"):
        for call in re.findall(r"tempfile\.\w+\((.*)\)", file.read_text()):
            assert "dir=" in call, file.name


@pytest.mark.parametrize("forged", [{"claimed": "f" * 40}, {"cut": 60}], ids=["another commit", "damaged"])
async def test_forged_commits_are_refused(
    spawner: Make, person: ProjectUser, repository: Repository, upstream: Upstream, herd: Broker, tmp_path: Path,
    forged: dict[str, Any],
) -> None:  # fmt: skip
    """Another commit than the event states, or an incomplete bundle, is reported and does not change the branch.

    A retry would have the same result, so the branch does not stay `saving`.
    """
    async with spawner().running():
        task = await person.submit(WAITS, repository=repository)
        sandbox = str((await person.reaches(task, "running")).sandbox)
        view = await reaches(person, task, lambda _: True)
        clone = clone_on(upstream, tmp_path / "sandbox", view.branch)
        commit(clone, {"shop.py": "total = 3\n"})
        await AgentsClone(herd, clone, sandbox).save(view.branch, view.base_commit, **forged)
        refused = await reaches(person, task, lambda found: found.problem is not None)
        await person.eventually(lambda: "branch.refused" in {event["type"] for event in person.events})
    assert (refused.commit, refused.pushed_commit, refused.saving) == (upstream.first, None, False)
    assert upstream.head(view.branch) == ""


async def test_commits_of_a_lost_branch_are_refused_in_the_end(
    spawner: Make, person: ProjectUser, repository: Repository, upstream: Upstream, server: GitServer, herd: Broker,
    tmp_path: Path, home: Path,
) -> None:  # fmt: skip
    """After the loss of the mirror, commits wait while the forge denies access, and the branch states why."""
    async with spawner().running():
        task = await person.submit(WAITS, repository=repository)
        sandbox = str((await person.reaches(task, "running")).sandbox)
        view = await reaches(person, task, lambda _: True)
        clone = clone_on(upstream, tmp_path / "sandbox", view.branch)
        commit(clone, {"shop.py": "total = 3\n"})
        [folder] = (home / "repositories" / "p1").glob("*.git")
        shutil.rmtree(folder)
        server.token = "another"
        await AgentsClone(herd, clone, sandbox).save(view.branch, view.base_commit)
        waits = await reaches(person, task, lambda found: (found.problem or "").startswith("not done yet"))
        assert (waits.saving, TOKEN in str(waits)) == (True, False)
        shutil.rmtree(upstream.path)
        server.token = TOKEN
        refused = await reaches(person, task, lambda found: (found.problem or "").startswith("commits refused"))
        await person.eventually(lambda: "branch.refused" in {event["type"] for event in person.events})
    assert not refused.saving
    assert "not found" in str(refused.problem)


async def test_unavailable_forge_delays_the_task_and_a_wrong_base_fails_it(
    spawner: Make, person: ProjectUser, repository: Repository, server: GitServer
) -> None:
    """What a task waits for is stated; its sandbox is created once the forge responds."""
    server.failing = 1_000_000
    async with spawner().running():
        task = await person.submit(["true"], repository=repository)

        async def stated() -> bool:
            view = await person.task(task)
            return view is not None and "repository is not available" in (view.waits_for or "")

        await eventually(stated)
        server.failing = 0
        await eventually(lambda: _is_created(person, task))
        wrong = await person.submit(["true"], repository=repository.model_copy(update={"base": "nosuch"}))
        view = await person.ended(wrong)
        assert (view.state, view.error_type) == ("failed", "repository")
        assert "no branch nosuch" in (view.error or "")


async def test_steps_are_counted_by_outcome(
    spawner: Make, person: ProjectUser, repository: Repository, server: GitServer, upstream: Upstream, herd: Broker,
    tmp_path: Path,
) -> None:  # fmt: skip
    """A denied token, an unavailable forge and a refused push are counted separately, as by their alerts."""

    def counted(service: Service, step: str, outcome: str) -> float:
        labels = {"step": step, "outcome": outcome}
        return service.registry.get_sample_value("sandherd_branch_steps_total", labels) or 0.0

    service = spawner()
    async with service.running():
        assert (counted(service, "prepare", "denied"), counted(service, "push", "refused")) == (0, 0)
        server.token = "ghs_another"
        assert (await person.ended(await person.submit(["true"], repository=repository))).error_type == "repository"
        assert counted(service, "prepare", "denied") == 1
        server.token, server.failing = TOKEN, 1
        task = await person.submit(WAITS, repository=repository)
        sandbox = str((await person.reaches(task, "running")).sandbox)
        assert (counted(service, "prepare", "unavailable"), counted(service, "prepare", "done")) == (1, 1)
        hook = upstream.path / "hooks" / "pre-receive"
        hook.parent.mkdir(exist_ok=True)
        hook.write_text("#!/bin/sh\nexit 1\n")
        hook.chmod(0o755)
        view = await reaches(person, task, lambda _: True)
        clone = clone_on(upstream, tmp_path / "sandbox", view.branch)
        commit(clone, {"shop.py": "total = 2\n"})
        await AgentsClone(herd, clone, sandbox).save(view.branch, view.base_commit)
        await reaches(person, task, lambda found: found.problem is not None)
        assert (counted(service, "save", "done"), counted(service, "push", "refused")) == (1, 1)


async def _is_created(person: ProjectUser, task: str) -> bool:
    return await branch_of(person, task) is not None


async def test_second_task_of_a_ticket_joins_or_gets_its_own_branch(
    spawner: Make, person: ProjectUser, repository: Repository
) -> None:
    """The task requests which; names also differ from those of ended tasks."""
    async with spawner().running():
        of_ticket = repository.model_copy(update={"ticket": "#7"})
        first = await person.submit(WAITS, repository=of_ticket)
        one = await reaches(person, first, lambda _: True)
        second = await person.submit(WAITS, repository=of_ticket.model_copy(update={"join": True}))
        joined = await reaches(person, second, lambda _: True)  # before the ticket has a second branch
        own = await reaches(person, await person.submit(WAITS, repository=of_ticket), lambda _: True)
        assert (joined.id, joined.tasks) == (one.id, [first, second])
        assert own.branch != one.branch
        assert own.branch.startswith("feature/7-do-it-")


async def test_conflicting_branches_are_found_before_any_pull_request(
    spawner: Make, person: ProjectUser, repository: Repository, upstream: Upstream, herd: Broker, tmp_path: Path
) -> None:
    """Two live branches that change the same line are listed with the paths; a branch of another file is not."""
    async with spawner().running():
        views = []
        for number, (file, text) in enumerate((("shop.py", "total = 2\n"), ("shop.py", "total = 3\n"), ("new", "x\n"))):
            task = await person.submit(WAITS, repository=repository)
            sandbox = str((await person.reaches(task, "running")).sandbox)
            view = await reaches(person, task, lambda _: True)
            clone = clone_on(upstream, tmp_path / f"sandbox-{number}", view.branch)
            commit(clone, {file: text})
            await AgentsClone(herd, clone, sandbox).save(view.branch, view.base_commit)
            views.append(await reaches(person, task, lambda found: found.pushed_commit == found.commit))
        await person.eventually(lambda: "branch.overlap_found" in {event["type"] for event in person.events})
        last = await reaches(person, views[1].tasks[0], lambda found: bool(found.overlaps))
    (event,) = [event for event in person.unique() if event["type"] == "branch.overlap_found"]
    assert event["data"]["branch"] == views[1].branch
    assert event["data"]["overlaps"] == [{"branch": views[0].branch, "paths": ["shop.py"]}]
    assert [overlap.branch for overlap in last.overlaps] == [views[0].branch]


async def test_task_works_on_the_default_repository_of_its_project(
    spawner: Make, person: ProjectUser, repository: Repository, herd: Broker
) -> None:
    """A task can opt out; a repository at a host that is not permitted is refused; the setting has the prefixes.

    A ticket, a base or a branch can be chosen without naming the repository.
    """
    url = str(repository.url)
    async with spawner(branch_prefixes=["agents/work"]).running(), herd.bus(Principal.OPERATOR) as operator:
        other = ProjectDefaults(repository=ProjectRepository(url="https://10.0.0.1/a/b"))
        with pytest.raises(RefusedError) as refused:
            await operator.ask(SetProject(new=True, defaults=other), "p1", timeout=PATIENCE)
        assert refused.value.problem.field == "defaults.repository.url"
        proxied = ProjectDefaults(repository=ProjectRepository(url=url, git_proxy=True))
        with pytest.raises(RefusedError) as refused:
            await operator.ask(SetProject(new=True, defaults=proxied), "p1", timeout=PATIENCE)
        assert refused.value.problem.field == "defaults.repository.git_proxy"
        own = ProjectDefaults(repository=ProjectRepository(url=url))
        await operator.ask(SetProject(new=True, defaults=own), "p1", timeout=PATIENCE)
        task = await person.submit(["/bin/sh", "-c", "cat shop.py"])
        view = await reaches(person, task, lambda _: True)
        assert view.repository == url.removesuffix(".git")
        assert view.branch.startswith("agents/work/")
        assert (await person.ended(task)).state == "completed"
        assert person.event_data(task, "task.submitted")["repository"] == url
        alone = await person.submit(["true"], no_repository=True)
        assert (await person.ended(alone)).repository is None
        context = Context(
            nats_url=herd.url,
            credentials=herd.credentials(Principal.CLIENT, project="p1"),
            project="p1",
            home=herd.home,
        )
        spec, chosen = TaskSpec(text="Add up", harness=CommandHarness(argv=["true"])), RepositorySource(ticket="#7")
        async with Herd.connect(context, patience=PATIENCE) as client:
            named: Any = {"follow": False, "limits": {}, "name": "task-ticket", "uploads": chosen}
            assert await task_submission.run(client, spec, Format.TABLE, **named) == 0
        view = await reaches(person, "task-ticket", lambda _: True)
        assert (view.repository, view.ticket) == (url.removesuffix(".git"), "#7")
