"""A pushed branch of a task, its forge, and a workflow of pull requests that a test runs step by step."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from nats.aio.msg import Msg
from prometheus_client import CollectorRegistry

from sandherd.bus.connection import Bus
from sandherd.bus.lease import Lease
from sandherd.contracts.commands import CommandHarness, SubmitTask, TaskSpec
from sandherd.contracts.envelope import Envelope, wrap
from sandherd.contracts.pull_requests import PullRequestOptions
from sandherd.contracts.repositories import Repository
from sandherd.contracts.requests import MergeBranch, OpenPullRequest
from sandherd.contracts.states import TaskState
from sandherd.contracts.subjects import Principal
from sandherd.stack.broker import Broker
from sandherd.telemetry.meters import Meters
from spawner.forges.credentials import StoredTokens
from spawner.forges.factory import Forges
from spawner.forges.git_credentials import GitCredentials
from spawner.live_state import LiveState
from spawner.pull_requests import pull_request_requests
from spawner.pull_requests.pull_request_options import PollIntervals, PullRequestTerms
from spawner.pull_requests.pull_request_workflow import PullRequestWorkflow
from spawner.repositories import branch_transitions as of_branch
from spawner.repositories.branch_artifacts import BranchArtifacts
from spawner.repositories.branch_record import BranchRecord
from spawner.repositories.branch_transitions import Decide
from spawner.repositories.branch_workflow import BranchWorkflow
from spawner.repositories.mirrors import Mirrors
from spawner.repositories.repository_hosts import RepositoryHosts
from spawner.spec_resolution import Refusal
from spawner.tasks import task_transitions as of_task
from spawner.tasks.resolved_task import ResolvedTask
from spawner.tasks.task_record import TaskRecord
from tests.integration.forges.sites import Site
from tests.integration.spawner.bucket_follower import following
from tests.patience import PATIENCE
from tests.polling import eventually

TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
PACE = PollIntervals(no_checks=timedelta())
READY = PullRequestOptions(open="ready")
MERGED = PullRequestOptions(open="ready", merge="when_permitted")


class Held(Lease):
    """A lease that is always held."""

    @property
    def held(self) -> bool:
        return True


class Killed(BaseException):
    """The spawner ended after a step was done, before it was written."""


class KilledWorkflow(PullRequestWorkflow):
    """A workflow that ends once after each step, before it is written; `killed` has the decisions of these steps."""

    killed: set[str]

    async def _change(self, key: str, decide: Decide) -> None:
        name = decide.func.__name__  # type: ignore[attr-defined]  # each is a partial function
        if name not in self.killed:
            self.killed.add(name)
            raise Killed
        await super()._change(key, decide)


@dataclass
class World:
    """One project with one branch, at one forge."""

    bus: Bus
    site: Site
    live: LiveState
    mirrors: Mirrors
    forges: Forges
    terms: PullRequestTerms = field(default_factory=lambda: PullRequestTerms(approval=("ci/**",)))
    ahead: timedelta = timedelta()
    submitted: list[Envelope[SubmitTask]] = field(default_factory=list)
    refusal: Refusal | None = None
    events: list[dict[str, Any]] = field(default_factory=list)
    key: str = ""

    def workflow(self, kind: type[PullRequestWorkflow] = PullRequestWorkflow) -> PullRequestWorkflow:
        """The workflow of a spawner that has just been started."""
        return kind(
            self.live, Held(self.bus, "test.pulls", "test"), self.mirrors, self.forges,
            terms=self.terms, submit=self.submit, ids=self.bus.ids, pace=PACE,
        )  # fmt: skip

    async def submit(self, command: Envelope[SubmitTask], at: datetime) -> Refusal | None:
        if command.id not in {one.id for one in self.submitted}:
            self.submitted.append(command)
        return self.refusal

    async def task(self, name: str, state: TaskState = TaskState.COMPLETED, **spec: Any) -> TaskRecord:
        """Create a task of the branch."""
        repository = Repository(url=f"{self.site.repository.url}.git")
        known = TaskSpec(text="Add up", harness=CommandHarness(argv=["true"]), repository=repository, **spec)
        command = wrap(
            SubmitTask(task=name, spec=known), SubmitTask.type, source="/sandherd/client/x", sequence=1, project="p1",
            subject=name, time=self.live.now(),
        )  # fmt: skip
        record = of_task.submitted(command, self.live.now(), TRACE, ResolvedTask())
        held, _ = await self.live.tasks.create(record.model_copy(update={"state": state, "outbox": ()}))
        return held.record

    async def branch(
        self, options: PullRequestOptions | None = None, *, state: TaskState = TaskState.COMPLETED, **changes: Any
    ) -> BranchRecord:
        """Create the branch of a task, pushed as it is."""
        task = await self.task("task-1", state)
        url = f"{self.site.repository.url}.git"
        base = self.site.shop.git.head("main") or ""
        record = of_branch.created(
            task, Repository(url=url, pull_request=options), branch="feature/sum", base="main", commit=base,
            at=self.live.now(),
        )  # fmt: skip
        head = self.site.head()
        record = record.model_copy(update={"commit": head, "pushed": head, "merged_on_trial": head, **changes})
        self.key = record.key
        held, _ = await self.live.branches.create(record)
        await self.live.tasks.change(task.key, lambda one, _: one.model_copy(update={"branch": record.id}))
        await self.live.catch_up()
        return held.record

    async def record(self) -> BranchRecord:
        held = await self.live.branches.load(self.key)
        assert held
        return held.record

    async def change(self, decide: Decide) -> BranchRecord:
        held = await self.live.branches.change(self.key, lambda record, _: decide(record))
        assert held
        await self.live.branches.flush(held)
        return held.record

    async def continued(self, files: dict[str, str]) -> str:
        """Save and push more commits."""
        head = self.site.shop.git.commit("feature/sum", files, "more")
        await self.change(
            lambda record: record.model_copy(update={"commit": head, "pushed": head, "merged_on_trial": head})
        )
        return head

    async def request_open(self, *, ready: bool = False) -> None:
        request, now = OpenPullRequest(branch="br-1", ready=ready), self.live.now()
        await self.change(lambda record: pull_request_requests.open_requested(record, request, now))

    async def request_merge(self) -> None:
        request, now = MergeBranch(branch="br-1"), self.live.now()
        await self.change(lambda record: pull_request_requests.merge_requested(record, request, now))

    async def run(self, kind: type[PullRequestWorkflow] = PullRequestWorkflow) -> BranchRecord:
        """Run all steps that are due now, each by a spawner that has just been started."""
        await self.live.catch_up()
        while await self.workflow(kind).step(self.key):
            await self.live.catch_up()
        return await self.record()

    async def ends(self, state: TaskState) -> None:
        """End the task of the branch."""
        await self.live.tasks.change("p1.task-1", lambda one, _: one.model_copy(update={"state": state}))

    def pass_time(self, seconds: float = 600.0) -> None:
        """Advance the spawner's clock; the forge's clock is not changed."""
        self.ahead += timedelta(seconds=seconds)

    async def poll(self, times: int = 3) -> BranchRecord:
        """Run the next polls, and the steps that follow from them."""
        for _ in range(times):
            self.pass_time()
            await self.run()
        return await self.record()

    async def published(self, kind: str, count: int) -> list[dict[str, Any]]:
        """Wait for this number of published events of a type, and return their data."""

        def found() -> list[dict[str, Any]]:
            every = [event["data"] for event in self.events if event["type"] == kind]
            return every if len(every) >= count else []

        shown: list[dict[str, Any]] = await eventually(found) if count else found()
        assert len(shown) == count
        return shown

    async def events_of(self, kind: str) -> list[dict[str, Any]]:
        """The data of the events of this type received so far."""
        return [event["data"] for event in self.events if event["type"] == kind]

    async def receive(self, message: Msg) -> None:
        self.events.append(json.loads(message.data))


@asynccontextmanager
async def opened_world(herd: Broker, site: Site, folder: Path) -> AsyncIterator[World]:
    """The forge's repository, with a running workflow of branches."""
    token, repository = site.token(), site.repository
    credentials = folder / "git-credentials"
    credentials.write_text(f"{site.double.url.replace('://', f'://oauth2:{token}@')}\n")
    forges = Forges([site.repository.host])
    forges.add_sources(repository.host, [StoredTokens(lambda: token)])
    async with herd.bus(Principal.SPAWNER) as bus, herd.bus(Principal.CLIENT, project="p1") as client:
        hosts = RepositoryHosts(frozenset({site.double.url}), GitCredentials(forges, credentials))
        artifacts = BranchArtifacts(bus)
        mirrors = Mirrors(folder / "repositories", hosts, artifacts, 100)
        world = World(bus, site, LiveState(bus, Meters(CollectorRegistry())), mirrors, forges)
        await client.client.subscribe("sandherd.v1.event.p1.>", cb=world.receive)
        await client.flush(timeout=PATIENCE)
        world.live.now = lambda: datetime.now(UTC) + world.ahead
        branches = BranchWorkflow(world.live, Held(bus, "test.branches", "test"), mirrors, artifacts, [])
        async with following(world.live):
            running = asyncio.create_task(branches.run())
            try:
                yield world
            finally:
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)
                await forges.close()
