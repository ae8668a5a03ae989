"""event-ingest: every event into Postgres, once, and answers about the past."""

import gc
import sys
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final, TypeVar

from pydantic import BaseModel

from event_ingest.answers.approvals import answer_approvals
from event_ingest.answers.auditing import answer_audit
from event_ingest.answers.dead import answer_dead
from event_ingest.answers.events import answer_events
from event_ingest.answers.output import answer_output
from event_ingest.answers.paging import ROOM_FOR_THE_REST
from event_ingest.answers.records import answer_sandboxes, answer_tasks
from event_ingest.answers.subscribing import Subscriptions
from event_ingest.answers.trajectory import answer_trajectory
from event_ingest.clearing import Clearing
from event_ingest.database import HEAVY, LIGHT, Connection, Database
from event_ingest.examining import look_at_migrations
from event_ingest.ingest import CONSUMER, Ingest
from event_ingest.measuring import Measures
from event_ingest.migrating import read_migrations
from event_ingest.schema import Schema
from sandherd.bus.service import Asked, Lane, Service, serve
from sandherd.contracts.requests import (
    AskApprovals,
    AskAudit,
    AskDead,
    AskEvents,
    AskOutput,
    AskSubscriptions,
    AskTrajectory,
    PartKind,
    PastSandboxes,
    PastTasks,
    Request,
    Subscribe,
    Unsubscribe,
)
from sandherd.contracts.subjects import Principal
from sandherd.settings import Settings

IN_FLIGHT: Final = 2
"""Batches at a time: one is read while another is being stored."""

HEAVY_LANE: Final = Lane(name="heavy history", at_once=HEAVY, per_project=1, cancels=True, budgeted=True)
"""What may read all of a sandbox or a project."""
STREAMS_LANE: Final = Lane(name="streams", at_once=4, per_project=2, cancels=True, budgeted=True)
"""What is read from the broker."""

AnswerT = TypeVar("AnswerT", bound=BaseModel)
Question = Callable[[Connection, Any, str, int], Awaitable[AnswerT]]


def compose(settings: Settings) -> Service:
    """The service, put together. The same for tests and for the real one."""
    service = Service(Principal.EVENT_INGEST, settings)
    known = read_migrations()[-1].number
    database = Database(settings.database_url, Schema(partial(datetime.now, UTC)).prepare, knows=known)
    ingest = Ingest(database, service.meters)
    service.health.add("postgres", database.problem)
    service.background("database", database.keep)
    service.background("measures", Measures(service, database).run)
    service.background("room", Clearing(service).run)
    service.consume_batches(CONSUMER, ingest.handle, batch=settings.ingest_batch, in_flight=IN_FLIGHT)
    service.examining.add(PartKind.MIGRATIONS, partial(look_at_migrations, database))
    service.requeues({"EVENTS": ingest.handle_one})
    _answer_from_history(service, database)
    _answer_from_streams(service, database)
    _answer_subscribers(service)
    return service


def _answer_from_history(service: Service, database: Database) -> None:
    light: dict[type[Request[Any]], Question[Any]] = {
        AskEvents: answer_events,
        PastTasks: answer_tasks,
        PastSandboxes: answer_sandboxes,
        AskApprovals: answer_approvals,
    }
    lane = _light_lane(service.settings)
    for request, question in light.items():
        service.answer(request, _asking(service, database, question), lane=lane)
    service.answer(AskTrajectory, _asking(service, database, answer_trajectory, heavy=True), lane=HEAVY_LANE)


def _light_lane(settings: Settings) -> Lane:
    per_project = min(LIGHT, settings.requests_at_once)
    return Lane(name="history", at_once=LIGHT, per_project=per_project, cancels=True, budgeted=True)


def _asking(
    service: Service, database: Database, question: Question[AnswerT], *, heavy: bool = False
) -> Callable[[Any], Awaitable[AnswerT]]:
    async def answer(asked: Asked[Any]) -> AnswerT:
        async with database.reading(heavy=heavy) as connection:
            return await question(connection, asked.request, asked.project, _room(service))

    return answer


def _answer_from_streams(service: Service, database: Database) -> None:
    async def audit(asked: Asked[AskAudit]) -> BaseModel:
        return await answer_audit(database, service.bus, asked.request, asked.project)

    async def output(asked: Asked[AskOutput]) -> BaseModel:
        return await answer_output(service.bus, asked.request, asked.project, _room(service))

    async def dead(asked: Asked[AskDead]) -> BaseModel:
        return await answer_dead(service.bus, asked.request, asked.project, _room(service))

    service.answer(AskAudit, audit, lane=HEAVY_LANE)
    service.answer(AskOutput, output, lane=STREAMS_LANE)
    service.answer(AskDead, dead, lane=STREAMS_LANE)


def _answer_subscribers(service: Service) -> None:
    subscriptions = Subscriptions(service)
    service.answer(AskSubscriptions, subscriptions.answer_list)
    service.answer(Subscribe, subscriptions.answer_subscribe)
    service.answer(Unsubscribe, subscriptions.answer_unsubscribe)


def _room(service: Service) -> int:
    """How many bytes of rows an answer may hold: the broker takes no larger message."""
    return service.bus.client.max_payload - ROOM_FOR_THE_REST


def main() -> None:
    """The program; with words behind it, one thing that is done and over."""
    if sys.argv[1:]:
        from event_ingest import upgrading

        sys.exit(upgrading.main(sys.argv[1:]))
    # What the imports brought lives as long as the program: a full collection need not walk over it in mid-batch.
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)  # a batch is some ten thousand objects, all gone when it is stored
    serve(Principal.EVENT_INGEST, compose)


if __name__ == "__main__":
    main()
