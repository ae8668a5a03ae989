"""The live state of the herd: its record buckets, and an in-memory index of each."""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import partial
from typing import Final, TypeVar

from sandherd.bus.connection import Bus
from sandherd.concurrency import run_until_first
from sandherd.contracts.requests import SandboxView, TaskView
from sandherd.contracts.states import TransitionRefusedError
from sandherd.contracts.subjects import ARTIFACT
from sandherd.telemetry import logs
from sandherd.telemetry.meters import Meters
from spawner.access_tokens.token_record import TokenRecord
from spawner.named_secrets.secret_store import WEBHOOK_BUCKET, SecretStore
from spawner.pool.warm_record import WarmRecord
from spawner.projects.project_record import ProjectRecord
from spawner.records.base_record import Record
from spawner.records.index import Index
from spawner.records.store import Store, StoredRecord
from spawner.records.vault import Vault
from spawner.repositories.branch_record import BranchRecord
from spawner.sandboxes import sandbox_transitions
from spawner.sandboxes.event_barrier import event_barrier
from spawner.sandboxes.last_events import LastEvents
from spawner.sandboxes.sandbox_record import SandboxRecord
from spawner.schedules.schedule_record import ScheduleRecord
from spawner.task_spans import count, record_sandbox_span
from spawner.tasks.task_record import TaskFacts, TaskRecord

Clock = Callable[[], datetime]
AnyRecord = TypeVar("AnyRecord", bound=Record)
_log: Final = logs.get("live")


def utc_now() -> datetime:
    """The current time in UTC."""
    return datetime.now(UTC)


class LiveState:
    """The current records of tasks, sandboxes and others. State changes are made here; forbidden ones are refused."""

    def __init__(self, bus: Bus, meters: Meters, clock: Clock = utc_now, vault: Vault | None = None) -> None:
        """`vault` stores the keys of secrets; without it no record may have any."""
        self._bus = bus
        self.vault = vault
        self.now = clock
        self.meters = meters
        self.is_leader: Callable[[], bool] = lambda: False
        """Whether this replica reconciles sandboxes: then most writes of tasks and sandboxes are its own."""
        self.task_index: Index[TaskRecord, TaskFacts] = Index("tasks", TaskRecord, _task_view)
        self.sandbox_index: Index[SandboxRecord, SandboxView] = Index("sandboxes", SandboxRecord, SandboxRecord.view)
        count_change = partial(count, meters, clock)
        self.tasks = Store(
            bus,
            "tasks",
            TaskRecord,
            self.task_index,
            count_change,
            vault=vault,
            sole_writer=self._is_leading,
        )
        self.pool_index: Index[WarmRecord, WarmRecord] = Index("pool", WarmRecord, _identity_view)
        self.pool = Store(bus, "pool", WarmRecord, self.pool_index)
        self.project_index: Index[ProjectRecord, ProjectRecord] = Index("projects", ProjectRecord, _identity_view)
        self.projects = Store(bus, "projects", ProjectRecord, self.project_index)
        self.schedule_index: Index[ScheduleRecord, ScheduleRecord] = Index("schedules", ScheduleRecord, _identity_view)
        self.schedules = Store(bus, "schedules", ScheduleRecord, self.schedule_index)
        self.branch_index: Index[BranchRecord, BranchRecord] = Index("branches", BranchRecord, _identity_view)
        self.branches = Store(bus, "branches", BranchRecord, self.branch_index)
        self.secrets = SecretStore(bus, clock, vault)
        self.webhook_secrets = SecretStore(bus, clock, vault, WEBHOOK_BUCKET)
        self.tokens = Store(bus, "tokens", TokenRecord)
        self.sandboxes = Store(
            bus,
            "sandboxes",
            SandboxRecord,
            self.sandbox_index,
            record_sandbox_span,
            vault=vault,
            sole_writer=self._is_leading,
        )
        self._are_events_acknowledged = event_barrier(bus)
        self.last_events = LastEvents(self._are_events_handled)
        self.sandbox_index.on_change(self.last_events.change)
        self._indexes = (
            self.task_index,
            self.sandbox_index,
            self.pool_index,
            self.project_index,
            self.schedule_index,
            self.branch_index,
        )

    def task_facts(self, key: str) -> TaskFacts | None:
        """The indexed view of a task; `saves` is whether its sandbox may still save commits. None without a record."""
        known = self.task_index.get(key)
        if known is None:
            return None
        last = known.view.sandbox or known.view.left
        if last is None:
            return known.view
        last_key = f"{known.view.project}.{last}"
        sandbox = self.sandbox_index.get(last_key)
        handled = self.last_events.are_handled(last_key, sandbox.view if sandbox else None, self.now())
        return known.view if handled else known.view.model_copy(update={"saves": True})

    async def _are_events_handled(self) -> bool:
        """Whether all earlier events of agents are handled, and the indexes have the resulting changes."""
        if not await self._are_events_acknowledged():
            return False
        await self.catch_up()
        return True

    async def delete_task(self, held: StoredRecord[TaskRecord]) -> bool:
        """Delete a task's record if it is unchanged, and the uploads stored only for it. Returns whether it did so."""
        deleted = await self.tasks.remove(held)
        for stored in held.record.stored_inputs if deleted else ():
            await self.delete_upload(stored.subject)
        return deleted

    async def delete_upload(self, subject: str) -> None:
        """Delete the chunks of an upload."""
        await self._bus.js.purge_stream("ARTIFACTS", subject=subject)

    async def uploads(self) -> Mapping[str, int]:
        """The number of chunks of each stored artifact, by the artifact's subject."""
        info = await self._bus.js.stream_info("ARTIFACTS", subjects_filter=ARTIFACT.pattern())
        return info.state.subjects or {}

    async def change_task(
        self, key: str, decide: Callable[[TaskRecord], TaskRecord], *, publish: bool = True
    ) -> StoredRecord[TaskRecord] | None:
        """Change a task and publish the resulting events. A forbidden transition is counted and changes nothing."""
        held = await self.tasks.change(key, lambda record, _: self.allowed(record, decide))
        return await self.tasks.flush(held) if held and publish else held

    async def change_branch(
        self, key: str, decide: Callable[[BranchRecord], BranchRecord]
    ) -> StoredRecord[BranchRecord] | None:
        """Change a branch as `change_task` does."""
        held = await self.branches.change(key, lambda record, _: self.allowed(record, decide))
        return await self.branches.flush(held) if held else None

    async def change_sandbox(
        self, key: str, decide: Callable[[SandboxRecord], SandboxRecord], *, publish: bool = True
    ) -> StoredRecord[SandboxRecord] | None:
        """Change a sandbox as `change_task` does. Its first change also writes its fencing token into the record."""

        def decide_fenced(record: SandboxRecord, revision: int) -> SandboxRecord:
            changed = self.allowed(record, decide)
            return changed if changed is record else sandbox_transitions.fenced(changed, revision)

        held = await self.sandboxes.change(key, decide_fenced)
        return await self.flush_sandbox(held) if held and publish else held

    async def flush_sandbox(self, held: StoredRecord[SandboxRecord]) -> StoredRecord[SandboxRecord]:
        """Publish a sandbox's events. If this is its first change, its fencing token is written first."""
        if held.record.outbox and held.record.fence is None:
            fenced = await self.sandboxes.change(held.record.key, sandbox_transitions.fenced)
            held = fenced or held
        return await self.sandboxes.flush(held)

    async def load_task(self, sandbox: SandboxRecord) -> StoredRecord[TaskRecord] | None:
        """The task of a sandbox; None if it has none, or the task's record is removed."""
        return await self.tasks.load(sandbox.task_key) if sandbox.task_key else None

    async def newest_task(self, sandbox: SandboxRecord) -> StoredRecord[TaskRecord] | None:
        """Like `load_task`, but possibly older than a simultaneous write of another replica (`Store.newest`)."""
        return await self.tasks.newest(sandbox.task_key) if sandbox.task_key else None

    async def flush_task_of(self, sandbox: SandboxRecord) -> None:
        """Publish the events of a sandbox's task that are not published yet."""
        task = await self.newest_task(sandbox)
        if task is not None:
            await self.tasks.flush(task)

    async def change_task_of(
        self, sandbox: SandboxRecord, decide: Callable[[TaskRecord], TaskRecord]
    ) -> StoredRecord[TaskRecord] | None:
        """Change the task of a sandbox, if it has one."""
        return await self.change_task(sandbox.task_key, decide) if sandbox.task_key else None

    async def catch_up(self) -> None:
        """Wait until the indexes contain everything that is now in the buckets. Raises `StoreUnavailableError`."""
        for index in self._indexes:
            await index.catch_up(self._bus)

    async def follow(self) -> None:
        """Update the indexes continuously, and remove published events from outboxes, until cancelled."""
        clear_outboxes = (store.clear_outboxes() for store in (self.tasks, self.sandboxes, self.branches))
        await run_until_first(*(index.follow(self._bus) for index in self._indexes), *clear_outboxes)

    async def close(self) -> None:
        """Remove published events from outboxes, so that the next spawner does not publish them again."""
        for store in (self.tasks, self.sandboxes, self.branches):
            await store.clear_all()

    async def read(self) -> None:
        """Wait until the indexes contain everything that was in the buckets at the start."""
        for index in self._indexes:
            await index.complete.wait()

    def _is_leading(self) -> bool:
        return self.is_leader()

    def problem(self) -> str | None:
        """Why the records are not complete yet, or None."""
        return None if all(index.complete.is_set() for index in self._indexes) else "the buckets are not read yet"

    def allowed(self, record: AnyRecord, decide: Callable[[AnyRecord], AnyRecord]) -> AnyRecord:
        """The result of `decide`. If it is a forbidden transition, that is counted, and the record is unchanged."""
        try:
            return decide(record)
        except TransitionRefusedError as error:
            kind = type(error.before).__name__
            self.meters.count("sandherd_transitions_refused_total", kind=kind)
            _log.warning("transition refused", key=record.key, error=str(error))
            return record


def _task_view(record: TaskRecord) -> TaskFacts:
    return record.view(whole=False)


def _identity_view(record: AnyRecord) -> AnyRecord:
    return record


def task_key(view: TaskView) -> str:
    """The key of a task in its bucket."""
    return f"{view.project}.{view.task}"


def sandbox_key(view: SandboxView) -> str:
    """The key of a sandbox in its bucket."""
    return f"{view.project}.{view.sandbox}"
