"""event-ingest of the version whose Python runs this, without a broker: it stores what it is given, and is asked.

    python -P history.py DATABASE_URL PROJECT

In: events, as JSON lines. Out: one line with the outcome of each, and one with the answers.
"""

# The names of version 0.1 do not exist here.
# mypy: disable-error-code="import-not-found, no-redef"

import asyncio
import json
import sys
from collections.abc import Callable, Coroutine
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Final

from event_ingest.database import Database
from event_ingest.ingest import Ingest
from event_ingest.schema import Schema
from sandherd.contracts.subjects import event_subject
from sandherd.telemetry import logs

try:
    from event_ingest.queries.approvals import list_approvals
    from event_ingest.queries.events import list_events
    from event_ingest.queries.tasks_and_sandboxes import list_sandboxes, list_tasks
    from event_ingest.queries.trajectory import read_trajectory
    from sandherd.bus.consumers.outcomes import Delivery
    from sandherd.contracts.requests import GetTrajectory, ListApprovals, ListEvents, ListPastSandboxes, ListPastTasks
except ImportError:  # as these were called in version 0.1
    from event_ingest.answers.approvals import answer_approvals as list_approvals
    from event_ingest.answers.events import answer_events as list_events
    from event_ingest.answers.records import answer_sandboxes as list_sandboxes
    from event_ingest.answers.records import answer_tasks as list_tasks
    from event_ingest.answers.trajectory import answer_trajectory as read_trajectory
    from sandherd.bus.consuming import Delivery
    from sandherd.contracts.requests import AskApprovals as ListApprovals
    from sandherd.contracts.requests import AskEvents as ListEvents
    from sandherd.contracts.requests import AskTrajectory as GetTrajectory
    from sandherd.contracts.requests import PastSandboxes as ListPastSandboxes
    from sandherd.contracts.requests import PastTasks as ListPastTasks

ROOM: Final = 10_000_000


class Silent:
    """Counts nothing: where meters are kept changes from version to version."""

    def __getattr__(self, _name: str) -> Any:
        return lambda *_given, **_named: None


def delivered(place: int, event: Any) -> Delivery:
    subject = event_subject(event["project"], event["subject"], event["type"])
    return Delivery(subject, json.dumps(event).encode(), "EVENTS", place, 1, datetime.now(UTC))


async def answers(database: Database, project: str, sandbox: str) -> dict[str, Any]:
    """What is asked of a history, by what is asked."""
    questions: tuple[tuple[Any, Any], ...] = (
        (ListEvents(limit=1000), list_events),
        (ListPastTasks(limit=1000), list_tasks),
        (ListPastSandboxes(limit=1000), list_sandboxes),
        (ListApprovals(limit=1000), list_approvals),
        (GetTrajectory(sandbox=sandbox, limit=1000), read_trajectory),
    )
    found = {}
    async with database.reading() as connection:
        for request, answer in questions:
            answered = await answer(connection, request, project, ROOM)
            if hasattr(answered, "to_json"):  # pages of events, after version 0.1
                answered = type(answered.answer).model_validate_json(answered.to_json())
            found[request.type] = answered.model_dump(mode="json")
    return found


def database_methods(
    database: Any,
) -> tuple[Callable[[], Coroutine[Any, Any, None]], Callable[[float], Coroutine[Any, Any, bool]]]:
    """`run_checks` and `wait_available`, which were `keep` and `back` in version 0.1."""
    if hasattr(database, "run_checks"):
        return database.run_checks, database.wait_available
    return database.keep, database.back


async def main(url: str, project: str, events: list[Any]) -> None:
    database = Database(url, Schema(lambda: datetime.now(UTC)).prepare)
    run_checks, wait_available = database_methods(database)
    checks = asyncio.create_task(run_checks())
    try:
        available = asyncio.create_task(wait_available(20))
        await asyncio.wait([available, checks], return_when=asyncio.FIRST_COMPLETED)
        if checks.done():
            checks.result()
        ingest = Ingest(database, Silent())  # type: ignore[arg-type]  # it is asked for nothing but counting
        outcomes = await ingest.handle([delivered(place, event) for place, event in enumerate(events, 1)])
        print(json.dumps([outcome_name(outcome) for outcome in outcomes]))
        print(json.dumps(await answers(database, project, events[0]["subject"])))
    finally:
        checks.cancel()
        with suppress(asyncio.CancelledError):
            await checks


def outcome_name(outcome: Any) -> str:
    problem = getattr(outcome, "problem", None)
    return str(problem.code) if problem else type(outcome).__name__.lower()


if __name__ == "__main__":
    logs.configure("history", "info")
    asyncio.run(main(sys.argv[1], sys.argv[2], [json.loads(line) for line in sys.stdin]))
