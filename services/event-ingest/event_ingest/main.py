"""event-ingest: stores every event in Postgres, once, and answers requests about the history."""

import asyncio
import gc
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final, TypeVar

from pydantic import BaseModel

from event_ingest.archive.history_archive import HistoryArchive, archive_store
from event_ingest.archive.restore_queue import HistoryRestores
from event_ingest.artifacts.artifact_storage import ArtifactStorage
from event_ingest.artifacts.content_store import content_store
from event_ingest.broker_data import check_broker_data
from event_ingest.database import HEAVY_CONNECTIONS, LIGHT_CONNECTIONS, Connection, Database
from event_ingest.database_address import database_address, named_problem
from event_ingest.gauges import IngestGauges
from event_ingest.history_reducer import HistoryReducer
from event_ingest.history_retention import HistoryRetention, policy_of
from event_ingest.ingest import CONSUMER, Ingest
from event_ingest.migrator import read_migrations
from event_ingest.partition_indexes import PartitionIndexes
from event_ingest.queries.approvals import list_approvals
from event_ingest.queries.archive import ArchiveRequests
from event_ingest.queries.audit import audit_events
from event_ingest.queries.comparison import compare_sandboxes
from event_ingest.queries.dead_letters import list_dead_letters
from event_ingest.queries.events import list_events
from event_ingest.queries.file_versions import list_file_versions
from event_ingest.queries.output import list_output
from event_ingest.queries.pages import RESERVED_REPLY_BYTES
from event_ingest.queries.retention import hold, release, show_status
from event_ingest.queries.search import search_events
from event_ingest.queries.statistics import count_statistics, show_overview
from event_ingest.queries.stored_artifacts import StoredArtifacts
from event_ingest.queries.stream_reader import stored_through
from event_ingest.queries.subscriptions import Subscriptions
from event_ingest.queries.tasks_and_sandboxes import list_sandboxes, list_tasks
from event_ingest.queries.trajectory import read_trajectory
from event_ingest.queries.transcript import read_transcript
from event_ingest.queries.usage import add_up_usage
from event_ingest.queries.verification import verify_tables
from event_ingest.schema import Schema, check_migrations
from event_ingest.stream_purge import StreamRetention
from event_ingest.subscription_watch import SubscriptionWatch
from event_ingest.word_segment_indexes import WordSegments
from sandherd.bus.broker_errors import BROKER_ERRORS
from sandherd.contracts.requests import (
    DATABASE,
    EventList,
    GetAudit,
    GetComparison,
    GetHistoryStatus,
    GetOutput,
    GetOverview,
    GetStatistics,
    GetTrajectory,
    GetTranscript,
    GetUsage,
    HoldHistory,
    ListApprovals,
    ListDeadLetters,
    ListEvents,
    ListFileVersions,
    ListHistoryArchives,
    ListPastSandboxes,
    ListPastTasks,
    ListSubscriptions,
    PartKind,
    ReadStoredArtifact,
    ReleaseHistory,
    Request,
    RestoreHistory,
    SearchEvents,
    Subscribe,
    Unsubscribe,
    VerifyHistory,
)
from sandherd.contracts.subjects import Principal
from sandherd.service.encoded_answer import AnyAnswer, EncodedAnswer
from sandherd.service.service import IncomingRequest, RequestLane, Service, serve
from sandherd.settings import Settings

IN_FLIGHT: Final = 2
"""Concurrent batches: one is read while another is being stored."""

HEAVY_LANE: Final = RequestLane(
    name="heavy history", at_once=HEAVY_CONNECTIONS, per_project=1, cancels=True, budgeted=True
)
"""For requests that may read all of a sandbox or a project."""
STREAMS_LANE: Final = RequestLane(name="streams", at_once=4, per_project=2, cancels=True, budgeted=True)
"""For requests that read from the broker."""
ARCHIVE_LANE: Final = RequestLane(name="archive", at_once=2, per_project=2, cancels=True, budgeted=True)
"""For requests that read from the archive of the history."""
ARTIFACT_LANE: Final = RequestLane(name="artifacts", at_once=4, per_project=2, cancels=True, budgeted=True)
"""For requests that read from the artifact store."""

ReplyT = TypeVar("ReplyT", bound=AnyAnswer)
HistoryQuery = Callable[[Connection, Any, str, int], Awaitable[ReplyT]]
"""Answers a request. Takes a connection, the request, its project, and the maximum bytes of rows in the reply."""


def compose(settings: Settings) -> Service:
    """Compose the service. Tests and production use it alike."""
    service = Service(Principal.EVENT_INGEST, settings)
    last_migration = read_migrations()[-1].number
    database = Database(
        settings.database_url,
        Schema(partial(datetime.now, UTC)).prepare,
        last_migration=last_migration,
        pooled=settings.database_pooled,
    )
    ingest = Ingest(database, service.meters, artifacts_stored=settings.artifact_store is not None)
    service.health.add(
        DATABASE,
        lambda: named_problem(database.problem(), settings.database_url),
        detail=database_address(settings.database_url),
    )
    service.background("database", database.run_checks)
    service.background("indexes", PartitionIndexes(database).run)
    service.background("word segments", WordSegments(database).run)
    service.background("measures", IngestGauges(service, database).run)
    service.background("retention", StreamRetention(service).run)
    _register_retention(service, database)
    _register_artifacts(service, database, ingest.artifacts_referred)
    service.background("subscriptions", SubscriptionWatch(service, database).run)
    service.consume_batches(CONSUMER, ingest.handle, batch=settings.ingest_batch, in_flight=IN_FLIGHT)
    service.examining.add(PartKind.MIGRATIONS, partial(check_migrations, database))
    service.examining.add(PartKind.WARNING, lambda: check_broker_data(database, service.bus))
    service.requeues({"EVENTS": ingest.handle_one})
    _register_history_requests(service, database)
    _register_stream_requests(service, database)
    _register_subscription_requests(service)
    return service


def _register_retention(service: Service, database: Database) -> None:
    """Register the parts that reduce, drop, archive and restore days, and that answer requests about the archive."""
    store = archive_store(service.settings)
    archive = None if store is None else HistoryArchive(store, service.meters)
    retention = HistoryRetention(database, service.meters, policy_of(service.settings), archive)
    service.background("history retention", retention.run)
    reducer = HistoryReducer(database, service.meters, policy_of(service.settings), archive)
    service.background("history reduction", reducer.run)
    restores = None if store is None else HistoryRestores(database, store)
    if restores is not None:
        service.background("history restores", restores.run)
    requests = ArchiveRequests(database, store, asyncio.Event() if restores is None else restores.requested)

    async def list_archives(incoming: IncomingRequest[ListHistoryArchives]) -> BaseModel:
        return await requests.list_archives(incoming.request, _max_reply_bytes(service))

    async def restore(incoming: IncomingRequest[RestoreHistory]) -> BaseModel:
        return await requests.restore(incoming.request, incoming.project)

    service.answer(ListHistoryArchives, list_archives, lane=ARCHIVE_LANE)
    service.answer(RestoreHistory, restore, lane=ARCHIVE_LANE)


def _register_artifacts(service: Service, database: Database, new_reference: asyncio.Event) -> None:
    """Register the parts that copy artifacts from their stream to the artifact store, and read them there."""
    store = content_store(service.settings)
    if store is not None:
        archived = service.settings.history_archive is not None
        service.background("artifacts", ArtifactStorage(service, database, store, new_reference, archived=archived).run)
    service.answer(ReadStoredArtifact, StoredArtifacts(database, store).read, lane=ARTIFACT_LANE)


def _register_history_requests(service: Service, database: Database) -> None:
    light: dict[type[Request[Any]], HistoryQuery[Any]] = {
        ListPastTasks: list_tasks,
        ListPastSandboxes: list_sandboxes,
        ListApprovals: list_approvals,
        GetOverview: show_overview,
        GetTranscript: read_transcript,
        HoldHistory: hold,
        ReleaseHistory: release,
    }
    heavy: dict[type[Request[Any]], HistoryQuery[Any]] = {
        GetTrajectory: read_trajectory,
        GetUsage: add_up_usage,
        GetStatistics: count_statistics,
        GetComparison: compare_sandboxes,
        SearchEvents: search_events,
        ListFileVersions: list_file_versions,
        VerifyHistory: verify_tables,
        GetHistoryStatus: partial(
            show_status,
            policy_of(service.settings),
            archive=service.settings.history_archive,
            artifacts=service.settings.artifact_store,
        ),
    }
    lane = _light_lane(service.settings)
    service.answer(ListEvents, _events_handler(service, database), lane=lane)
    for request, query in light.items():
        service.answer(request, _history_handler(service, database, query), lane=lane)
    for request, query in heavy.items():
        service.answer(request, _history_handler(service, database, query, heavy=True), lane=HEAVY_LANE)


def _light_lane(settings: Settings) -> RequestLane:
    per_project = min(LIGHT_CONNECTIONS, settings.requests_at_once)
    return RequestLane(name="history", at_once=LIGHT_CONNECTIONS, per_project=per_project, cancels=True, budgeted=True)


def _history_handler(
    service: Service, database: Database, query: HistoryQuery[ReplyT], *, heavy: bool = False
) -> Callable[[Any], Awaitable[ReplyT]]:
    async def answer(incoming: IncomingRequest[Any]) -> ReplyT:
        async with database.reading(heavy=heavy) as connection:
            return await query(connection, incoming.request, incoming.project, _max_reply_bytes(service))

    return answer


def _events_handler(service: Service, database: Database) -> Callable[[Any], Awaitable[EncodedAnswer[EventList]]]:
    list_stored = _history_handler(service, database, list_events)

    async def answer(incoming: IncomingRequest[ListEvents]) -> EncodedAnswer[EventList]:
        acknowledged_sequence = None
        if incoming.request.cursor is None:  # before the events are read, so that they include all up to it
            with suppress(*BROKER_ERRORS):
                acknowledged_sequence = await stored_through(service.bus, timeout=1)
        page = await list_stored(incoming)
        return replace(page, answer=page.answer.model_copy(update={"stored_through": acknowledged_sequence}))

    return answer


def _register_stream_requests(service: Service, database: Database) -> None:
    async def audit(incoming: IncomingRequest[GetAudit]) -> BaseModel:
        task_days = service.settings.history_task_days
        return await audit_events(database, service.bus, incoming.request, incoming.project, task_days)

    async def output(incoming: IncomingRequest[GetOutput]) -> BaseModel:
        return await list_output(service.bus, incoming.request, incoming.project, _max_reply_bytes(service))

    async def dead(incoming: IncomingRequest[ListDeadLetters]) -> BaseModel:
        return await list_dead_letters(service.bus, incoming.request, incoming.project, _max_reply_bytes(service))

    service.answer(GetAudit, audit, lane=HEAVY_LANE)
    service.answer(GetOutput, output, lane=STREAMS_LANE)
    service.answer(ListDeadLetters, dead, lane=STREAMS_LANE)


def _register_subscription_requests(service: Service) -> None:
    subscriptions = Subscriptions(service)
    service.answer(ListSubscriptions, subscriptions.list_subscriptions)
    service.answer(Subscribe, subscriptions.subscribe)
    service.answer(Unsubscribe, subscriptions.unsubscribe)


def _max_reply_bytes(service: Service) -> int:
    """Maximum bytes of rows in a reply, as the broker limits the size of a message."""
    return service.bus.client.max_payload - RESERVED_REPLY_BYTES


def main() -> None:
    """Run the service; with arguments, run a one-time command (`event_ingest.upgrade`)."""
    if sys.argv[1:]:
        from event_ingest import upgrade

        sys.exit(upgrade.main(sys.argv[1:]))
    # Imported objects live as long as the program: a full collection need not traverse them during a batch.
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)  # a batch is some ten thousand objects, all freed once it is stored
    serve(Principal.EVENT_INGEST, compose)


if __name__ == "__main__":
    main()
