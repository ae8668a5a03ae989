"""event-ingest of the version whose Python runs this, without a broker: it stores what it is given, and is asked.

    python -P history.py DATABASE_URL PROJECT

In: events, as JSON lines. Out: one line with the outcome of each, and one with the answers.
"""

import asyncio
import json
import sys
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Final

from event_ingest.answers.approvals import answer_approvals
from event_ingest.answers.events import answer_events
from event_ingest.answers.records import answer_sandboxes, answer_tasks
from event_ingest.answers.trajectory import answer_trajectory
from event_ingest.database import Database
from event_ingest.ingest import Ingest
from event_ingest.schema import Schema
from sandherd.bus.consuming import Delivery
from sandherd.contracts.requests import AskApprovals, AskEvents, AskTrajectory, PastSandboxes, PastTasks
from sandherd.contracts.subjects import event_subject
from sandherd.telemetry import logs

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
        (AskEvents(limit=1000), answer_events),
        (PastTasks(limit=1000), answer_tasks),
        (PastSandboxes(limit=1000), answer_sandboxes),
        (AskApprovals(limit=1000), answer_approvals),
        (AskTrajectory(sandbox=sandbox, limit=1000), answer_trajectory),
    )
    found = {}
    async with database.reading() as connection:
        for asked, answer in questions:
            found[asked.type] = (await answer(connection, asked, project, ROOM)).model_dump(mode="json")
    return found


async def main(url: str, project: str, events: list[Any]) -> None:
    database = Database(url, Schema(lambda: datetime.now(UTC)).prepare)
    keeping = asyncio.create_task(database.keep())
    try:
        back = asyncio.create_task(database.back(20))
        await asyncio.wait([back, keeping], return_when=asyncio.FIRST_COMPLETED)
        if keeping.done():
            keeping.result()
        ingest = Ingest(database, Silent())  # type: ignore[arg-type]  # it is asked for nothing but counting
        outcomes = await ingest.handle([delivered(place, event) for place, event in enumerate(events, 1)])
        print(json.dumps([outcome_name(outcome) for outcome in outcomes]))
        print(json.dumps(await answers(database, project, events[0]["subject"])))
    finally:
        keeping.cancel()
        with suppress(asyncio.CancelledError):
            await keeping


def outcome_name(outcome: Any) -> str:
    problem = getattr(outcome, "problem", None)
    return str(problem.code) if problem else type(outcome).__name__.lower()


if __name__ == "__main__":
    logs.configure("history", "info")
    asyncio.run(main(sys.argv[1], sys.argv[2], [json.loads(line) for line in sys.stdin]))
