"""From the stream into the history: what is delivered is read, stored, and answered for, message by message."""

from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

from event_ingest.agents import Agents
from event_ingest.database import Database, DatabaseAwayError, fault_of
from event_ingest.rows import TYPE, Batch
from event_ingest.storing import Stored, store
from sandherd.bus.consuming import DONE, Dead, Delivery, Outcome, Retry
from sandherd.contracts.errors import ContractError
from sandherd.telemetry import logs, spans, traces
from sandherd.telemetry.meters import Meters

CONSUMER: Final = "event-ingest"
PATIENCE: Final = 4.0
"""How long a batch waits for the database before it is given back; under half of the consumer's `ack_wait`."""
AGAIN_AFTER: Final = 1.0
_MILESTONES: Final = frozenset(
    {
        *("task.submitted", "sandbox.spawned", "task.running"),
        *("task.completed", "task.failed", "task.cancelled", "sandbox.terminated", "sandbox.failed"),
    }
)
"""The events whose storing is shown in their trace: a span for each event would cost more than storing it."""
_log: Final = logs.get("ingest")


class Ingest:
    """Handles batches of the EVENTS stream."""

    def __init__(self, database: Database, meters: Meters) -> None:
        self._database = database
        self._meters = meters
        self._agents = Agents(meters)

    async def handle(self, deliveries: list[Delivery]) -> Sequence[Outcome]:
        """Store a batch; an outcome for each delivery. While the database is away, all are asked for again."""
        outcomes: list[Outcome] = [DONE] * len(deliveries)
        batch = _read_all(deliveries, outcomes)
        try:
            stored = await self._store(batch)
        except DatabaseAwayError as error:
            return [_again(outcome, str(error)) for outcome in outcomes]
        for place, problem in stored.refused.items():
            outcomes[place] = Dead(problem)
        self._count(stored, batch, deliveries)
        self._agents.take(event for place, event in batch.told if stored.is_new(place))
        return outcomes

    async def handle_one(self, delivery: Delivery) -> Outcome:
        """Store one event, as when a dead letter is put back."""
        return (await self.handle([delivery]))[0]

    async def _store(self, batch: Batch) -> Stored:
        if not batch.rows:
            return Stored()
        try:
            stored = await store(self._database, batch)
        except Exception as error:  # narrowed by its fault; what is none of the database is raised again
            if fault_of(error) is None:
                raise
            _log.warning("not stored yet", events=len(batch), error=repr(error))
            if not await self._database.back(PATIENCE):
                raise DatabaseAwayError(repr(error)) from error
            stored = await self._store_again(batch)
        _trace(batch)
        return stored

    async def _store_again(self, batch: Batch) -> Stored:
        try:
            return await store(self._database, batch)
        except Exception as error:  # narrowed by its fault; what is none of the database is raised again
            if fault_of(error) is None:
                raise
            raise DatabaseAwayError(repr(error)) from error

    def _count(self, stored: Stored, batch: Batch, deliveries: Sequence[Delivery]) -> None:
        for event_type, amount in _types(stored, batch).items():
            self._meters.count("sandherd_ingest_stored_total", amount, type=event_type)
        self._meters.count("sandherd_ingest_received_total", len(deliveries))
        self._meters.count("sandherd_ingest_duplicates_total", stored.duplicates)
        self._meters.observe("sandherd_ingest_batch_events", len(deliveries))
        waited = datetime.now(UTC) - min(delivery.at for delivery in deliveries)
        self._meters.observe("sandherd_ingest_lag_seconds", max(0.0, waited.total_seconds()))


def _types(stored: Stored, batch: Batch) -> Counter[str]:
    """How many of each type were new."""
    if not stored.old and not stored.refused:
        return Counter(row[TYPE] for row in batch.rows)
    return Counter(row[TYPE] for place, row in zip(batch.places, batch.rows, strict=True) if stored.is_new(place))


def _read_all(deliveries: Sequence[Delivery], outcomes: list[Outcome]) -> Batch:
    """The events among the deliveries; the outcome of what is none is set."""
    batch = Batch()
    for place, delivery in enumerate(deliveries):
        try:
            batch.add(place, delivery)
        except ContractError as error:
            outcomes[place] = Dead(error.problem)
    return batch


def _again(outcome: Outcome, reason: str) -> Outcome:
    return outcome if isinstance(outcome, Dead) else Retry(AGAIN_AFTER, reason)


def _trace(batch: Batch) -> None:
    for event in batch.spoken:
        if event is not None and event.type in _MILESTONES:
            values: spans.Values = {
                spans.TYPE: event.type,
                spans.PROJECT: event.project,
                spans.TASK_ID: event.taskid,
                spans.SANDBOX_ID: event.sandboxid,
            }
            with traces.span(spans.STORE, event.traceparent, values):
                pass
