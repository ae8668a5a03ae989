"""Stores the events of the stream in the history: parses each delivered batch, and returns an outcome per message."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from operator import attrgetter, itemgetter
from typing import Final

from event_ingest.agent_metrics import AgentMetrics
from event_ingest.batch_writer import BatchResult, store
from event_ingest.database import Database, DatabaseUnavailableError, classify_error
from event_ingest.event_rows import TYPE_INDEX, EventBatch
from sandherd.bus.consumers.consumer import DONE, Dead, Delivery, Outcome, Retry
from sandherd.contracts.errors import ContractError
from sandherd.contracts.events import EVENTS
from sandherd.telemetry import logs, spans, traces
from sandherd.telemetry.meters import Meters

CONSUMER: Final = "event-ingest"
DATABASE_TIMEOUT: Final = 4.0
"""How long a batch waits for the database before it is to be redelivered, in seconds.

It is below half of the consumer's `ack_wait`.
"""
RETRY_DELAY: Final = 1.0
"""The delay before a batch is redelivered, in seconds."""
MILESTONES: Final = frozenset(name for name, model in EVENTS.items() if model.milestone)
"""The types of events whose storing is traced. A span for each event would take more time than storing it."""
_PARSED_AT_ONCE: Final = 500
"""Number of parsed events of a batch after which requests and health checks may run."""
_TYPE_OF: Final = itemgetter(TYPE_INDEX)
_AT: Final = attrgetter("at")
_log: Final = logs.get("ingest")


class Ingest:
    """Handles batches of the EVENTS stream."""

    def __init__(self, database: Database, meters: Meters, *, artifacts_stored: bool = True) -> None:
        """`artifacts_stored` is whether there is an artifact store. If not, references to artifacts are not stored."""
        self._database = database
        self._meters = meters
        self._agent_metrics = AgentMetrics(meters)
        self._artifacts_stored = artifacts_stored
        self.artifacts_referred = asyncio.Event()
        """Set when events that refer to artifacts were stored."""

    async def handle(self, deliveries: list[Delivery]) -> Sequence[Outcome]:
        """Store a batch. Returns an outcome for each delivery: `Retry` while the database is unavailable."""
        outcomes: list[Outcome] = [DONE] * len(deliveries)
        batch = await _parse_deliveries(deliveries, outcomes)
        if not self._artifacts_stored:
            batch.artifacts.clear()
        try:
            stored = await self._store(batch)
        except DatabaseUnavailableError as error:
            return [_retry_unless_dead(outcome, str(error)) for outcome in outcomes]
        for index, problem in stored.refused.items():
            outcomes[index] = Dead(problem)
        if batch.artifacts:
            self.artifacts_referred.set()
        self._count(stored, batch, deliveries)
        self._agent_metrics.record(event for index, event in batch.measured if stored.is_new(index))
        return outcomes

    async def handle_one(self, delivery: Delivery) -> Outcome:
        """Store the event of a dead letter that is requeued."""
        return (await self.handle([delivery]))[0]

    async def _store(self, batch: EventBatch) -> BatchResult:
        if not batch.rows:
            return BatchResult()
        try:
            stored = await store(self._database, batch)
        except Exception as error:  # narrowed by `classify_error`; others are raised again
            if classify_error(error) is None:
                raise
            _log.warning("batch not stored, waiting for database", events=len(batch), error=repr(error))
            if not await self._database.wait_available(DATABASE_TIMEOUT):
                raise DatabaseUnavailableError(repr(error)) from error
            stored = await self._retry_store(batch)
        _trace(batch)
        return stored

    async def _retry_store(self, batch: EventBatch) -> BatchResult:
        try:
            return await store(self._database, batch)
        except Exception as error:  # narrowed by `classify_error`; others are raised again
            if classify_error(error) is None:
                raise
            raise DatabaseUnavailableError(repr(error)) from error

    def _count(self, batch_result: BatchResult, batch: EventBatch, deliveries: Sequence[Delivery]) -> None:
        for event_type, amount in _count_new_by_type(batch_result, batch).items():
            self._meters.count("sandherd_ingest_stored_total", amount, type=event_type)
        self._meters.count("sandherd_ingest_received_total", len(deliveries))
        self._meters.count("sandherd_ingest_duplicates_total", batch_result.duplicates)
        self._meters.observe("sandherd_ingest_batch_events", len(deliveries))
        lag = datetime.now(UTC) - min(map(_AT, deliveries))
        self._meters.observe("sandherd_ingest_lag_seconds", max(0.0, lag.total_seconds()))


def _count_new_by_type(batch_result: BatchResult, batch: EventBatch) -> Counter[str]:
    """Number of new events by type."""
    if not batch_result.old and not batch_result.refused:
        return Counter(map(_TYPE_OF, batch.rows))
    return Counter(
        row[TYPE_INDEX] for index, row in zip(batch.indexes, batch.rows, strict=True) if batch_result.is_new(index)
    )


async def _parse_deliveries(deliveries: Sequence[Delivery], outcomes: list[Outcome]) -> EventBatch:
    """The events among the deliveries; sets the outcome of those that are invalid."""
    batch = EventBatch()
    for index, delivery in enumerate(deliveries):
        if index and not index % _PARSED_AT_ONCE:
            await asyncio.sleep(0)
        try:
            batch.add(index, delivery)
        except ContractError as error:
            outcomes[index] = Dead(error.problem)
    return batch


def _retry_unless_dead(outcome: Outcome, reason: str) -> Outcome:
    return outcome if isinstance(outcome, Dead) else Retry(RETRY_DELAY, reason)


def _trace(batch: EventBatch) -> None:
    for event in batch.service_events:
        if event is not None and event.type in MILESTONES:
            values: spans.Values = {
                spans.TYPE: event.type,
                spans.PROJECT: event.project,
                spans.TASK_ID: event.taskid,
                spans.SANDBOX_ID: event.sandboxid,
            }
            with traces.span(spans.STORE, event.traceparent, values):
                pass
