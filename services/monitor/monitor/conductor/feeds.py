"""The Conductor's input: changed summaries, events of branches, and the submitted specifications of tasks."""

import asyncio
from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Final

import nats.errors
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.js.errors import NotFoundError
from pydantic import ValidationError

from monitor.bucket_entries import BucketEntry, BucketReader
from monitor.conductor.members import TaskContext
from monitor.facts import Key
from sandherd.bus.connection import Bus
from sandherd.bus.direct_get import StoredMessage, read_batch
from sandherd.bus.kv import last_message
from sandherd.contracts.decoder import read_event
from sandherd.contracts.errors import ContractError
from sandherd.contracts.events import EventData
from sandherd.contracts.events.branch import BranchEvent
from sandherd.contracts.events.task import TaskSubmitted
from sandherd.contracts.labels import BATCH_LABEL
from sandherd.contracts.records import SandboxSummary
from sandherd.contracts.streams import live_subject
from sandherd.contracts.subjects import PREFIX, event_subject
from sandherd.telemetry import logs

EVENTS: Final = "EVENTS"
BRANCH_SUBJECTS: Final = f"{PREFIX}.event.*.*.branch.*"
_BATCH_SIZE: Final = 500
_BATCH_BYTES: Final = 8 * 1024 * 1024
_MAX_STORED_CONTEXTS: Final = 20_000
_PARALLEL_READS: Final = 50
_log: Final = logs.get("conductor")


class SummaryFeed:
    """Reads all summaries once, and then each summary that has changed."""

    def __init__(self, bus: Bus) -> None:
        self._reader = BucketReader(bus, SandboxSummary.bucket)

    async def next_batch(self) -> dict[Key, SandboxSummary | None]:
        """The next changed summaries; empty if there are none. A deleted summary is None. Raises nats-py's errors."""
        while batch := await self._reader.next_batch():
            if summaries := dict(summary for entry in batch if (summary := _summary(entry)) is not None):
                return summaries
        return {}


async def summaries_of(bus: Bus, project: str) -> list[SandboxSummary]:
    """The summaries of a project; `*` for all projects. Raises nats-py's errors."""
    entries = await BucketReader(bus, SandboxSummary.bucket, f"{project}.*").remaining()
    summaries = (keyed[1] for entry in entries if (keyed := _summary(entry)) is not None)
    return [summary for summary in summaries if summary is not None]


def _summary(entry: BucketEntry) -> tuple[Key, SandboxSummary | None] | None:
    """A summary with its key. None if the entry can't be read."""
    project, _, sandbox = entry.key.partition(".")
    if entry.value is None:
        return (project, sandbox), None
    try:
        return (project, sandbox), SandboxSummary.model_validate_json(entry.value)
    except ValidationError as error:
        _log.warning("summary unreadable, ignored", project=project, sandbox=sandbox, error=repr(error)[:200])
        return None


@dataclass(frozen=True, slots=True)
class ReadBranchEvent:
    """An event of a branch, with its project and the broker's time."""

    project: str
    data: EventData
    at: datetime


class BranchFeed:
    """Reads the events of branches when a new event has arrived, and at least every `_READ_INTERVAL` seconds."""

    _READ_INTERVAL: Final = 30.0

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._next_sequence = 1
        self._may_have_new = True
        self._read_at = 0.0
        self._subscription: Subscription | None = None

    async def start(self) -> None:
        """Subscribe to new events, which cause the next read. Raises nats-py's errors."""
        await self.stop()
        self._subscription = await self._bus.client.subscribe(live_subject(BRANCH_SUBJECTS), cb=self._on_event)
        self._may_have_new = True

    async def stop(self) -> None:
        """Unsubscribe."""
        subscription, self._subscription = self._subscription, None
        if subscription is not None and not self._bus.closed:
            with suppress(nats.errors.Error):  # not connected: the broker has already removed it
                await subscription.unsubscribe()

    async def _on_event(self, _msg: Msg) -> None:
        self._may_have_new = True

    async def next_batch(self) -> Sequence[ReadBranchEvent]:
        """The next events of branches, in order; empty if there are none. Raises nats-py's errors."""
        now = asyncio.get_running_loop().time()
        if not self._may_have_new and now - self._read_at < self._READ_INTERVAL:
            return ()
        self._may_have_new = False
        try:
            batch = await read_batch(
                self._bus, EVENTS, BRANCH_SUBJECTS, first=self._next_sequence, limit=_BATCH_SIZE, max_bytes=_BATCH_BYTES
            )
        except BaseException:
            self._may_have_new = True
            raise
        self._read_at = now
        if batch:
            self._next_sequence, self._may_have_new = batch[-1].sequence + 1, True
        return [event for stored in batch if (event := _branch_event(stored)) is not None]


def _branch_event(stored_message: StoredMessage) -> ReadBranchEvent | None:
    try:
        event = read_event(stored_message.subject, stored_message.data)
    except ContractError:
        return None  # event-ingest reports it
    return (
        ReadBranchEvent(event.project, event.data, stored_message.at) if isinstance(event.data, BranchEvent) else None
    )


class TaskContexts:
    """Reads the specifications with which tasks were submitted, once for each task."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._contexts: OrderedDict[tuple[str, str], TaskContext] = OrderedDict()

    async def of(self, tasks: Collection[tuple[str, str]]) -> Mapping[tuple[str, str], TaskContext]:
        """The contexts of tasks, by project and name. Raises nats-py's errors.

        If the event of a task has expired, its context is empty.
        """
        missing = sorted(set(tasks) - self._contexts.keys())
        for start in range(0, len(missing), _PARALLEL_READS):
            portion = missing[start : start + _PARALLEL_READS]
            contexts_read = await asyncio.gather(*(self._read(*task) for task in portion))
            self._contexts.update(zip(portion, contexts_read, strict=True))
        contexts = {task: self._contexts[task] for task in tasks}
        while len(self._contexts) > _MAX_STORED_CONTEXTS:
            self._contexts.popitem(last=False)
        return contexts

    async def _read(self, project: str, task: str) -> TaskContext:
        subject = event_subject(project, task, TaskSubmitted.type)
        try:
            data = read_event(subject, (await last_message(self._bus, EVENTS, subject)).data or b"").data
        except (NotFoundError, ContractError):
            return TaskContext()
        if not isinstance(data, TaskSubmitted):
            return TaskContext()
        return TaskContext(data.labels.get(BATCH_LABEL), frozenset(filter(None, (*data.depends_on, data.resumes))))
