"""The spawner is killed after any step: the next one continues, and makes no branch, commit or push twice."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from sandherd.bus.connection import Bus
from sandherd.concurrency import cancel_and_wait, run_until_first
from sandherd.contracts.commands import CommandHarness, SubmitTask, TaskSpec
from sandherd.contracts.envelope import wrap
from sandherd.contracts.names import new_name
from sandherd.contracts.repositories import Repository
from sandherd.contracts.subjects import Principal
from sandherd.settings.repositories import BRANCH_PREFIXES
from sandherd.stack.broker import Broker
from sandherd.telemetry.meters import Meters
from spawner.live_state import LiveState
from spawner.repositories import branch_transitions, branch_workflow, mirror
from spawner.repositories.branch_artifacts import BranchArtifacts
from spawner.repositories.branch_names import rules_of
from spawner.repositories.branch_record import BranchRecord, ReceivedCommits
from spawner.repositories.checkout_preparer import CheckoutPreparer
from spawner.repositories.commit_signer import CommitSigner
from spawner.repositories.git import RemoteRepository, run_git
from spawner.repositories.mirrors import Mirrors
from spawner.repositories.repository_hosts import RepositoryHosts
from spawner.tasks import task_transitions as of_task
from spawner.tasks.task_record import TaskRecord
from tests.integration.repositories.conftest import Upstream, commit, git
from tests.integration.repositories.test_branches import clone_on, stored
from tests.integration.repositories.test_signed_commits import COMMITTER, new_key
from tests.polling import eventually

URL = "https://git.example/team/shop.git"
TRACE = f"00-{'a' * 32}-{'b' * 16}-01"
WRITING = {"init", "fetch", "update-ref", "unpack-objects", "push", "bundle"}
"""The commands of git that change a repository."""
EVENTS = {"task.submitted": 1, "branch.created": 1, "branch.saved": 1, "branch.pushed": 1}


class Killed(BaseException):
    """Ends the process; error handlers do not catch it."""


class Effects:
    """Counts what a spawner changes in the broker and in repositories; after `allowed` effects it is killed."""

    def __init__(self, allowed: int) -> None:
        self.allowed, self.names = allowed, list[str]()
        self.commands: Counter[str] = Counter()
        self.dead = asyncio.Event()

    def counted(self, name: str | None, work: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def run(*words: Any, **options: Any) -> Any:
            if self.dead.is_set():
                raise Killed
            self.commands.update(words[2:3] if name is None else ())
            shown = name or next((word for word in words if word in WRITING), None)
            result = await work(*words, **options)
            if shown:
                self.names.append(shown)
                if len(self.names) > self.allowed:
                    self.dead.set()
                    raise Killed
            return result

        return run


class HeldLease:
    """The lease of the only replica."""

    held, fence = True, 1

    def check(self) -> None:
        """Pass: the lease is held."""

    async def wait_held(self) -> None:
        """Return: the lease is held."""


class LocalHosts(RepositoryHosts):
    """A configuration of one host, whose repository is a folder."""

    def __init__(self, path: Path) -> None:
        super().__init__(frozenset({"https://git.example"}))
        object.__setattr__(self, "path", path)

    async def remote(self, url: str) -> RemoteRepository:
        """The folder of the repository."""
        assert url == URL
        return RemoteRepository(str(self.path))  # type: ignore[attr-defined]  # set above


class Story:
    """One task from its submission to the pushed branch, with as many spawners as needed."""

    def __init__(self, herd: Broker, bus: Bus, upstream: Upstream, folder: Path, number: int) -> None:
        self.herd, self.bus, self.upstream, self.folder = herd, bus, upstream, folder
        self.project, self.task = f"k{number}", f"task-k{number}"
        self.live = LiveState(bus, Meters(CollectorRegistry()))
        self.head = ""
        self.signer: CommitSigner | None = None

    async def submit(self) -> None:
        """Write the task's record."""
        spec = TaskSpec(text="do it", harness=CommandHarness(argv=["true"]), repository=Repository(url=URL))
        command = wrap(
            SubmitTask(task=self.task, spec=spec), SubmitTask.type, source="/sandherd/client/x", sequence=1,
            project=self.project, subject=self.task, time=datetime.now(UTC),
        )  # fmt: skip
        await self.live.tasks.create(of_task.submitted(command, datetime.now(UTC), TRACE))

    async def prepared(self) -> TaskRecord | None:
        """Wait until the task has its checkout."""
        held = await self.live.tasks.load(f"{self.project}.{self.task}")
        assert held
        return held.record if held.record.checkout else None

    async def pushed(self) -> BranchRecord | None:
        """Wait until everything about the branch is done."""
        task = await self.prepared()
        held = await self.live.branches.load(f"{self.project}.{task.branch}") if task else None
        record = held.record if held else None
        saved = record is not None and record.unsigned == self.head and record.pushed == record.commit
        done = saved and record is not None and not record.has_work and not record.outbox
        return held.record if held and done else None

    async def save(self) -> None:
        """Commit in the sandbox, and receive its bundle."""
        task = await self.prepared()
        assert task
        assert task.checkout
        sandbox = new_name("sbx")
        clone = clone_on(self.upstream, self.folder / self.task, task.checkout.branch)
        self.head = commit(clone, {f"{self.task}.txt": "done\n"})
        file = self.folder / f"{self.task}.bundle"
        git(clone, "bundle", "create", "--quiet", str(file), task.checkout.branch, f"^{task.checkout.base_commit}")
        async with self.herd.bus(Principal.WORKER, project=self.project, sandbox=sandbox) as bus:
            artifact = await stored(bus, file.read_bytes(), sandbox, self.project)
        commits = ReceivedCommits(sandbox=sandbox, task=self.task, commit=self.head, bundle=artifact)
        now = datetime.now(UTC)
        await self.live.branches.change(
            f"{self.project}.{task.branch}", lambda record, _: branch_transitions.received(record, commits, now)
        )

    async def spawner(self, effects: Effects, monkeypatch: Any) -> None:
        """Run a spawner until it is killed, or the branch is pushed."""
        async with self.herd.bus(Principal.SPAWNER) as bus:
            live = LiveState(bus, Meters(CollectorRegistry()))
            artifacts = BranchArtifacts(bus)
            for store, name in ((live.tasks, "task"), (live.branches, "branch")):
                monkeypatch.setattr(store, "_write", effects.counted(f"write {name}", store._write))
            monkeypatch.setattr(bus, "publish_stored", effects.counted("publish event", bus.publish_stored))
            monkeypatch.setattr(artifacts, "_publish", effects.counted("publish chunk", artifacts._publish))
            with monkeypatch.context() as patched:
                patched.setattr(mirror, "run_git", effects.counted(None, run_git))
                mirrors = Mirrors(self.folder / "mirrors", LocalHosts(self.upstream.path), artifacts, 1024)
                lease: Any = HeldLease()
                parts = (
                    CheckoutPreparer(live, lease, mirrors, artifacts, {"process"}, rules=rules_of(BRANCH_PREFIXES)),
                    branch_workflow.BranchWorkflow(live, lease, mirrors, artifacts, ["*.yml"], signer=self.signer),
                )
                running = asyncio.ensure_future(
                    run_until_first(live.follow(), *(part.run() for part in parts), effects.dead.wait())
                )
                try:
                    await self._until_dead_or_done(effects)
                finally:
                    effects.dead.set()
                    await cancel_and_wait([running])

    async def _until_dead_or_done(self, effects: Effects) -> None:
        async def prepared() -> bool:
            return effects.dead.is_set() or await self.prepared() is not None

        async def pushed() -> bool:
            return effects.dead.is_set() or await self.pushed() is not None

        await eventually(prepared)
        if not self.head and not effects.dead.is_set():
            await self.save()
        if self.head:
            await eventually(pushed)

    def check(self, branch: BranchRecord) -> None:
        """Check that the forge has only this branch of the task, which was pushed once, with its commit."""
        assert (branch.unsigned, branch.tasks) == (self.head, (self.task,))
        assert self.upstream.head(branch.branch) == branch.commit
        log = (self.upstream.path / "logs" / "refs" / "heads" / branch.branch).read_text().splitlines()
        assert len(log) == 1, log
        assert (branch.size.commits, branch.size.files_changed) == (1, 1)


@pytest.mark.parametrize("every", [6, pytest.param(1, marks=pytest.mark.long)], ids=["some steps", "each step"])
async def test_spawner_killed_after_any_step_is_continued(
    herd: Broker, upstream: Upstream, tmp_path: Path, monkeypatch: Any, every: int
) -> None:
    """Each step is the last one of a spawner; each task has one branch, one push, and each event once.

    Commits are signed, which adds steps and leaves out none.
    """
    git(upstream.path, "config", "core.logAllRefUpdates", "always")
    first, killed = Effects(0), True
    async with herd.bus(Principal.SPAWNER) as bus:
        for number in range(0, 100, every):
            story = Story(herd, bus, upstream, tmp_path / str(number), number)
            story.folder.mkdir()
            story.signer = CommitSigner(new_key(story.folder, "ed25519").file, COMMITTER)
            await story.submit()
            first = Effects(number)
            await story.spawner(first, monkeypatch)
            killed = len(first.names) > number
            if killed:
                await story.spawner(Effects(1000), monkeypatch)
            branch = await story.pushed()
            assert branch, (number, first.names)
            story.check(branch)
            events = (await bus.js.stream_info("EVENTS", subjects_filter=f"*.*.event.{story.project}.>")).state.subjects
            assert events
            assert {subject.partition(f".{story.task}.")[2]: count for subject, count in events.items()} == EVENTS
            git(upstream.path, "update-ref", "-d", f"refs/heads/{branch.branch}")
            if not killed:
                break
    assert not killed
    assert first.commands["ls-tree"] == 1, "the changed paths of a branch are computed once"
    assert {
        "init",
        "fetch",
        "update-ref",
        "push",
        "unpack-objects",
        "write task",
        "write branch",
        "publish event",
    } <= set(first.names)
