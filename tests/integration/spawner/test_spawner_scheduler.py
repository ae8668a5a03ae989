"""The scheduler's writes, on a real broker: only with its token, and each can be completed by the next leader."""

from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from sandherd.bus.connection import Bus
from sandherd.bus.lease import Lease, LeaseLostError
from sandherd.contracts.commands import CommandHarness, SubmitTask, TaskSpec
from sandherd.contracts.envelope import wrap
from sandherd.contracts.states import SandboxState, TaskState
from sandherd.contracts.subjects import Principal
from sandherd.settings import Settings
from sandherd.stack.broker import Broker
from sandherd.telemetry.meters import Meters
from spawner.live_state import LiveState
from spawner.runtimes.contract import Capabilities, Isolation
from spawner.sandboxes import sandbox_transitions as of_sandbox
from spawner.sandboxes.admission import Admission
from spawner.sandboxes.sandbox_record import SandboxRecord
from spawner.spec_resolution import SpawnPolicy, expiry
from spawner.tasks import task_transitions as of_task
from spawner.tasks.queue_updates import follow
from spawner.tasks.resolved_task import ResolvedTask
from spawner.tasks.scheduler import NewSandboxRecord, Scheduler
from spawner.tasks.scheduling_order import sandbox_name
from spawner.tasks.task_queue import TaskQueue
from spawner.tasks.task_record import TaskRecord
from tests.integration.spawner.bucket_follower import following

NOW = datetime(2026, 11, 20, tzinfo=UTC)
TRACE = f"00-{'a' * 32}-{'b' * 16}-01"


def created_on_demand(menu: SpawnPolicy) -> NewSandboxRecord:
    """Creates each sandbox when it is needed, without a warm pool."""

    async def new_record(task: TaskRecord, sandbox: str, now: datetime) -> SandboxRecord:
        return of_sandbox.requested(task, sandbox, now, expires_at=expiry(task.spec, menu, now))

    return new_record


class Token(Lease):
    """A lease that is held, and is lost after a number of checks."""

    def __init__(self, bus: Bus, fence: int, good_for: int = 1000) -> None:
        super().__init__(bus, "test.scheduler", "test")
        self.fence = fence
        self.good_for = good_for

    @property
    def held(self) -> bool:
        self.good_for -= 1
        return self.good_for >= 0


def started_cold(menu: SpawnPolicy) -> NewSandboxRecord:
    """Creates each sandbox on demand, without a warm pool."""

    async def new_record(task: TaskRecord, sandbox: str, now: datetime) -> SandboxRecord:
        return of_sandbox.requested(task, sandbox, now, expires_at=expiry(task.spec, menu, now))

    return new_record


class World:
    """A scheduler, and the records and runtimes that it works on."""

    def __init__(self, bus: Bus, settings: Settings) -> None:
        self.bus = bus
        self.settings = settings
        self.now = NOW
        self.live = LiveState(bus, Meters(CollectorRegistry()), lambda: self.now)
        self.queue: TaskQueue = follow(self.live, settings)
        self.assigned: list[str] = []

    def scheduler(self, token: Token) -> Scheduler:
        async def settled() -> bool:
            return True

        admission = Admission(self.bus, self.live, self.queue.capacity.exhausted_limit)
        menu = SpawnPolicy.of(self.settings, {"process": Capabilities(Isolation.NONE, "none", "none")})
        return Scheduler(
            self.live, self.queue, token, admission=admission, new_record=created_on_demand(menu),
            assigned=self.assigned.append, settled=settled, interval=1,
        )  # fmt: skip

    async def tick(self, fence: int = 7, good_for: int = 1000) -> None:
        await self.scheduler(Token(self.bus, fence, good_for)).tick()

    async def submit(self, name: str, terms: ResolvedTask | None = None, **changes: Any) -> TaskRecord:
        spec = TaskSpec(text="do it", harness=CommandHarness(argv=["true"]))
        command = wrap(
            SubmitTask(task=name, spec=spec), SubmitTask.type, source="/sandherd/client/x", sequence=1, project="p1",
            subject=name, time=NOW,
        )  # fmt: skip
        record = of_task.submitted(command, NOW, TRACE, terms or ResolvedTask()).model_copy(update=changes)
        held, _ = await self.live.tasks.create(record)
        return held.record

    async def task(self, name: str) -> TaskRecord:
        held = await self.live.tasks.load(f"p1.{name}")
        assert held
        return held.record

    async def sandboxes(self) -> list[str]:
        await self.live.catch_up()
        return [view.sandbox for view in self.live.sandbox_index.views()]


@pytest.fixture
async def world(herd: Broker) -> AsyncIterator[World]:
    async with herd.bus(Principal.SPAWNER) as bus:
        made = World(bus, herd.settings(Principal.SPAWNER, max_sandboxes=1))
        async with following(made.live):
            yield made


async def test_older_token_writes_nothing_over_a_newer_one(world: World) -> None:
    """A scheduler suspended for longer than its lease finds the newer token, and stops."""
    await world.submit("task-1", scheduled_by=9)
    with pytest.raises(LeaseLostError):
        await world.tick(fence=8)
    assert (await world.task("task-1")).state is TaskState.PENDING
    assert world.assigned == []
    assert await world.sandboxes() == []
    world.now += timedelta(seconds=2)
    await world.tick(fence=9)
    assigned = await world.task("task-1")
    assert (assigned.state, assigned.scheduled_by) == (TaskState.ASSIGNED, 9)
    assert world.assigned == [f"p1.{assigned.sandbox}"]


@pytest.mark.parametrize("good_for", range(3))
async def test_lost_lease_stops_before_the_next_write(world: World, good_for: int) -> None:
    """Wherever the lease is lost, the next leader finds and finishes what is half done."""
    await world.submit("task-1")
    with pytest.raises(LeaseLostError):
        await world.tick(good_for=good_for)
    assert (await world.task("task-1")).state is TaskState.PENDING
    world.now += timedelta(seconds=2)
    await world.tick(fence=8)
    assert (await world.task("task-1")).state is TaskState.ASSIGNED
    assert len(await world.sandboxes()) == 1


async def test_task_continues_after_a_crash_between_two_writes(world: World) -> None:
    """A task continues after a crash between two writes, although its requested sandbox has the only capacity."""
    record = await world.submit("task-1")
    await world.submit("task-2")
    name = sandbox_name(record)
    await world.live.sandboxes.create(of_sandbox.requested(record, name, NOW))
    await world.tick()
    assert (await world.task("task-1")).sandbox == name
    assert (await world.task("task-2")).state is TaskState.PENDING
    assert await world.sandboxes() == [name]


async def test_no_attempt_starts_before_the_last_sandbox_has_ended(world: World) -> None:
    """An attempt starts only if the last sandbox's stored record has ended, even if none of its events was read."""
    first = await world.submit("task-1")
    box, _ = await world.live.sandboxes.create(of_sandbox.requested(first, sandbox_name(first), NOW))
    key = box.record.key

    def lose(task: TaskRecord) -> TaskRecord:
        return of_task.attempt_failed(of_task.assigned(task, box.record.sandbox, NOW), "gone", "sandbox_lost", NOW)

    await world.live.change_task("p1.task-1", lose)
    world.now += timedelta(seconds=9)
    world.queue.remove_sandbox(key)
    await world.tick()
    assert (await world.task("task-1")).state is TaskState.PENDING
    await world.live.change_sandbox(key, lambda record: of_sandbox.failed(record, "gone", "sandbox_lost", NOW))
    world.now += timedelta(seconds=9)
    await world.tick()
    second = await world.task("task-1")
    assert (second.state, second.attempt) == (TaskState.ASSIGNED, 2)
    assert second.sandbox != box.record.sandbox
    made = await world.live.sandboxes.load(f"p1.{second.sandbox}")
    assert made
    assert made.record.previous
    assert made.record.previous.sandbox == box.record.sandbox


@pytest.mark.parametrize(
    ("state", "move"),
    [
        (TaskState.ASSIGNED, lambda task: of_task.assigned(task, "sbx-1", NOW)),
        (TaskState.CANCELLED, lambda task: task.entering(TaskState.CANCELLED, ended_at=NOW)),
    ],
)
async def test_changed_record_is_seen_before_the_write(
    world: World, state: TaskState, move: Callable[[TaskRecord], TaskRecord]
) -> None:
    """The queue may be late: a changed record decides."""
    await world.submit("task-1")
    known = world.live.task_index.get("p1.task-1")
    assert known
    await world.live.change_task("p1.task-1", move)
    world.queue.change_task("p1.task-1", known.view)
    await world.tick()
    assert (await world.task("task-1")).state is state
    assert world.assigned == []


async def test_attempt_over_its_limit_waits_for_its_last_events(world: World) -> None:
    """An attempt over its limit waits a limited time for its last events; then it has failed."""
    await world.submit("task-1", ResolvedTask(attempt_seconds=60))
    await world.tick()
    assert world.live.sandbox_index.get(f"p1.{(await world.task('task-1')).sandbox}")
    answers = [False, True]

    async def settled() -> bool:
        return answers.pop(0)

    scheduler = world.scheduler(Token(world.bus, 7))
    scheduler._reaper._settled = settled
    world.now += timedelta(seconds=61)
    change = scheduler._fenced_change(7)
    assert await scheduler._reaper.end_pending(change)
    await scheduler._reaper.end_overdue_attempts(change)
    assert (await world.task("task-1")).state is TaskState.ASSIGNED
    await scheduler._reaper.end_overdue_attempts(change)
    again = await world.task("task-1")
    assert (again.state, again.attempt, again.scheduled_by) == (TaskState.PENDING, 2, 7)
    assert SandboxState.REQUESTED in {view.state for view in world.live.sandbox_index.views()}
