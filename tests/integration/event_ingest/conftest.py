"""A history that is written without a broker, sources that publish on a real one, and event-ingest between them."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import asyncpg
import pytest
from prometheus_client import CollectorRegistry

from event_ingest.database import Database
from event_ingest.ingest import Ingest
from event_ingest.main import compose
from event_ingest.schema import Schema
from sandherd.bus.connection import Bus
from sandherd.bus.consumers.consumer import Delivery, Outcome
from sandherd.concurrency import KeyedLocks
from sandherd.contracts.envelope import Envelope, wrap
from sandherd.contracts.events import EVENTS
from sandherd.contracts.requests import Request
from sandherd.contracts.subjects import Principal, event_subject
from sandherd.service.service import Service
from sandherd.stack.broker import Broker
from sandherd.telemetry.meters import Meters
from tests.doubles.stream_admin import stream_admin
from tests.patience import PATIENCE
from tests.polling import eventually

BEGUN = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)
SPEAKERS = {
    "agent": Principal.WORKER,
    "task": Principal.SPAWNER,
    "sandbox": Principal.SPAWNER,
    "message": Principal.MESSAGE_RELAY,
    "approval": Principal.MESSAGE_RELAY,
    "monitor": Principal.MONITOR,
    "subscription": Principal.EVENT_INGEST,
}


class Script:
    """Creates the events of a herd: each source is numbered from 1, and its events are a second apart."""

    def __init__(self) -> None:
        self.numbers: defaultdict[tuple[str, str], int] = defaultdict(int)
        self.clock = BEGUN

    def emit(
        self,
        event_type: str,
        entity: str,
        source: str,
        *,
        project: str = "default",
        taskid: str | None = None,
        sandboxid: str | None = None,
        **data: Any,
    ) -> Envelope[Any]:
        self.numbers[project, source] += 1
        self.clock += timedelta(seconds=1)
        return wrap(
            EVENTS[event_type](**data),
            event_type,
            source=source,
            sequence=self.numbers[project, source],
            project=project,
            subject=entity,
            time=self.clock,
            taskid=taskid,
            sandboxid=sandboxid,
        )

    def agent(self, event_type: str, sandbox: str, **fields: Any) -> Envelope[Any]:
        return self.emit(event_type, sandbox, f"/sandherd/sandbox/{sandbox}", sandboxid=sandbox, **fields)

    def spawner(self, event_type: str, entity: str, **fields: Any) -> Envelope[Any]:
        return self.emit(event_type, entity, f"/sandherd/spawner/{entity}", **fields)

    def messages(self, sandbox: str, count: int, *, project: str = "default") -> list[Envelope[Any]]:
        return [
            self.agent("agent.message", sandbox, project=project, content=f"word {place}", content_length=6)
            for place in range(count)
        ]

    def asking(self, sandbox: str, approval: str, *, project: str = "default", **requested: Any) -> list[Envelope[Any]]:
        """An agent requests an approval, and message-relay publishes the request."""
        given = requested.pop("input", {"command": "rm -r build"})
        own = self.agent(
            "agent.approval_requested", sandbox, project=project, approval_id=approval, tool="Bash", input=given
        )
        return [
            own,
            self.approval("requested", sandbox, approval, project=project, tool="Bash", asked_in=own.id, **requested),
        ]

    def approval(self, what: str, sandbox: str, approval: str, **fields: Any) -> Envelope[Any]:
        source = f"/sandherd/message-relay/{sandbox}/{approval}"
        return self.emit(f"approval.{what}", sandbox, source, sandboxid=sandbox, approval_id=approval, **fields)

    def heartbeat(self, sandbox: str, *, project: str = "default") -> Envelope[Any]:
        return self.agent("agent.heartbeat", sandbox, project=project, timestamp=self.clock)

    def life(self, task: str, sandbox: str, *, project: str = "default") -> list[Envelope[Any]]:
        """The events that the spawner publishes about one task that completes."""
        task_event = partial(self.spawner, entity=task, project=project, taskid=task)
        own = partial(self.spawner, entity=sandbox, project=project, taskid=task, sandboxid=sandbox, runtime="process")
        return [
            task_event("task.submitted", task="compute C(50, 25)", harness="command", runtime="process"),
            own("sandbox.requested"),
            task_event("task.assigned", sandboxid=sandbox, sandbox=sandbox, attempt=1),
            own("sandbox.spawned", isolation="bubblewrap"),
            own("sandbox.running"),
            task_event("task.running", sandboxid=sandbox, sandbox=sandbox, attempt=1),
            task_event("task.completed", sandboxid=sandbox, sandbox=sandbox, attempt=1, result={"exit_code": 0}),
            own("sandbox.stopping", reason="completed"),
            own("sandbox.terminated", reason="completed", exit_code=0),
        ]


def delivered(events: Iterable[Envelope[Any]], first: int = 1) -> list[Delivery]:
    """The events as EVENTS would deliver them, in this order."""
    return [
        Delivery(event_subject(event.project, event.subject, event.type), event.to_json(), "EVENTS", place, 1, BEGUN)
        for place, event in enumerate(events, first)
    ]


class History:
    """A database, and the part of event-ingest that writes it, without a broker."""

    def __init__(self, database: Database, url: str) -> None:
        self.database = database
        self.url = url
        self.ingest = Ingest(database, Meters(CollectorRegistry()))
        self.place = 1

    delivered = staticmethod(delivered)

    async def deliver(self, events: Sequence[Envelope[Any]]) -> list[Outcome]:
        """Store events as one batch."""
        deliveries = delivered(events, self.place)
        self.place += len(deliveries)
        return list(await self.ingest.handle(deliveries))

    async def rows(self, statement: str, *values: Any) -> list[dict[str, Any]]:
        async with self.database.reading() as connection:
            return [dict(row) for row in await connection.fetch(statement, *values)]

    async def tables(self) -> dict[str, list[dict[str, Any]]]:
        """All rows of the read tables."""
        keys = {
            "tasks": "project, task",
            "sandboxes": "project, sandbox",
            "messages": "project, message",
            "approvals": "project, sandbox, approval",
            "sources": "project, source, entity",
        }
        return {name: await self.rows(f"select * from {name} order by {key}") for name, key in keys.items()}


@asynccontextmanager
async def opened_history(url: str) -> AsyncIterator[History]:
    database = Database(url, Schema(lambda: datetime.now(UTC)).prepare)
    keeping = asyncio.create_task(database.run_checks())
    try:
        assert await database.wait_available(PATIENCE)
        yield History(database, url)
    finally:
        keeping.cancel()
        with suppress(asyncio.CancelledError):
            await keeping


@pytest.fixture
def open_history() -> Any:
    """A function that opens histories, for tests that run their own loop."""
    return opened_history


@pytest.fixture
def script() -> Script:
    return Script()


@pytest.fixture
async def history(postgres: str) -> AsyncIterator[History]:
    async with opened_history(postgres) as opened:
        yield opened


class Herd:
    """A broker, connections that publish with their own credentials, and connections that send requests."""

    def __init__(self, broker: Broker, postgres: str, stack: AsyncExitStack) -> None:
        self.broker = broker
        self.postgres = postgres
        self._stack = stack
        self._buses: dict[tuple[str, ...], Bus] = {}
        self._opening: KeyedLocks[tuple[str, ...]] = KeyedLocks()

    async def bus(self, principal: Principal, *, project: str = "default", sandbox: str = "") -> Bus:
        key = principal, project, sandbox
        async with self._opening.hold(key):  # publishers that work at the same time share one connection
            if key not in self._buses:
                opening = self.broker.bus(principal, project=project, sandbox=sandbox)
                self._buses[key] = await self._stack.enter_async_context(opening)
        return self._buses[key]

    async def emit(self, events: Iterable[Envelope[Any]]) -> None:
        """Publish each event with its source's credential, until the broker has all of them."""
        await asyncio.gather(*[self._publish_event(event) for event in events])

    async def _publish_event(self, event: Envelope[Any]) -> None:
        await (await self._voice(event)).publish_event(event)

    async def _voice(self, event: Envelope[Any]) -> Bus:
        principal = SPEAKERS[event.type.partition(".")[0]]
        if principal is Principal.WORKER:
            return await self.bus(principal, project=event.project, sandbox=event.subject)
        return await self.bus(principal)

    async def voices(self, events: Sequence[Envelope[Any]]) -> None:
        """Open the connections in advance, one after the other."""
        for event in events:
            await self._voice(event)

    async def ask(self, request: Request[Any], project: str = "fleet") -> Any:
        bound = Principal.OPERATOR if project == "fleet" else Principal.CLIENT
        asker = await self.bus(bound, project="default" if project == "fleet" else project)
        return await asker.ask(request, project, timeout=PATIENCE)

    def service(self, **settings: Any) -> Service:
        return compose(self.broker.settings(Principal.EVENT_INGEST, database_url=self.postgres, **settings))

    async def stored(self, count: int, seconds: float = PATIENCE) -> None:
        """Wait until this number of events is in the database."""
        connection = await asyncpg.connect(self.postgres)
        try:
            await eventually(partial(self._has, connection, count), f"{count} events stored", seconds)
        finally:
            await connection.close()

    async def _has(self, connection: Any, count: int) -> bool:
        stored = await connection.fetchval("select count(*) from events")
        assert stored <= count
        return bool(stored == count)


@pytest.fixture
async def world(herd: Broker, postgres: str) -> AsyncIterator[Herd]:
    """The broker and the database, without event-ingest, but with the service that changes streams for it."""
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(stream_admin(herd))
        yield Herd(herd, postgres, stack)


@pytest.fixture
async def running(world: Herd) -> AsyncIterator[Herd]:
    """The broker, the database, and a running event-ingest."""
    async with world.service().running():
        yield world
