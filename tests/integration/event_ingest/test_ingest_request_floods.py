"""A project floods with requests of all kinds, or without waiting for replies, on a real broker and Postgres."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import asyncpg
import pytest

from event_ingest.partition_indexes import unpacked_indexes
from sandherd.bus.connection import Bus, RefusedError
from sandherd.contracts.errors import Code
from sandherd.contracts.requests import (
    TIMEOUT_HEADER,
    GetAudit,
    GetComparison,
    GetOutput,
    GetOverview,
    GetStatistics,
    GetTrajectory,
    GetTranscript,
    GetUsage,
    ListApprovals,
    ListDeadLetters,
    ListEvents,
    ListFileVersions,
    ListPastSandboxes,
    ListPastTasks,
    Request,
    SearchEvents,
    VerifyHistory,
)
from sandherd.contracts.subjects import Principal, request_subject
from tests.patience import PATIENCE
from tests.polling import eventually

OWN, OTHER = "sbx-alpha", "sbx-beta"
OF_DATABASE: tuple[Callable[[str], Request[Any]], ...] = (
    lambda _: ListEvents(limit=1000),
    lambda _: ListPastTasks(),
    lambda _: ListPastSandboxes(),
    lambda _: ListApprovals(),
    lambda _: GetOverview(),
    lambda sandbox: GetTranscript(sandbox=sandbox),
    lambda sandbox: GetTrajectory(sandbox=sandbox, limit=1000),
    lambda _: GetUsage(),
    lambda _: GetStatistics(),
    lambda sandbox: GetComparison(first=sandbox, second=sandbox),
    lambda _: SearchEvents(text="word"),
    lambda sandbox: ListFileVersions(sandbox=sandbox),
    lambda _: VerifyHistory(),
    lambda _: GetAudit(),
)
ALL: tuple[Callable[[str], Request[Any]], ...] = (
    *OF_DATABASE,
    lambda sandbox: GetOutput(sandbox=sandbox),
    lambda _: ListDeadLetters(),
)
TABLES = "events, sources, tasks, sandboxes, approvals"
OF_A_PROJECT = 3
"""The maximum of a project: two light requests and a heavy one."""


@pytest.fixture
async def projects(running: Any, script: Any) -> tuple[Bus, Bus]:
    """The clients of alpha and beta, each with a history."""
    await running.emit([*script.messages(OWN, 9, project="alpha"), *script.messages(OTHER, 9, project="beta")])
    await running.stored(18)
    return await running.bus(Principal.CLIENT, project="alpha"), await running.bus(Principal.CLIENT, project="beta")


@asynccontextmanager
async def locked(postgres: str) -> AsyncIterator[asyncpg.Connection]:
    """Lock the history, so that every query waits. Yields a connection that can count them."""
    holding, looking = await asyncpg.connect(postgres), await asyncpg.connect(postgres)
    try:
        await _unpacked(looking)  # an index that is being created and this lock would wait for each other
        async with holding.transaction():
            await holding.execute(f"lock table {TABLES} in access exclusive mode")
            yield looking
    finally:
        await looking.close()
        await holding.close()


async def _unpacked(connection: asyncpg.Connection) -> None:
    """Wait until the service has packed the indexes of the earlier days."""

    async def none() -> bool:
        return not await unpacked_indexes(connection, datetime.now(UTC))

    await eventually(none)


async def waiting(connection: asyncpg.Connection) -> int:
    """How many queries of requests wait for the lock, without those that prepare the schema."""
    found: int = await connection.fetchval(
        "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database() "
        rf"and query ~ '(from|join) ({TABLES.replace(', ', '|')})\M' and query !~ 'partition|pg_'"
    )
    return found


async def test_kinds_share_the_limits_of_a_project(projects: tuple[Bus, Bus], postgres: str) -> None:
    """However many kinds alpha requests at the same time, it has no more queries, and beta's run beside them."""
    alpha, beta = projects
    most = 0

    async def count(wanted: int) -> bool:
        nonlocal most
        found = await waiting(connection)
        most = max(most, found)
        return found == wanted

    async with locked(postgres) as connection:
        flood = [asyncio.create_task(ask(alpha, make(OWN), "alpha")) for _ in range(8) for make in OF_DATABASE]
        await eventually(lambda: count(OF_A_PROJECT))
        own = [asyncio.create_task(ask(beta, request, "beta")) for request in (ListEvents(limit=5), GetAudit())]
        await eventually(lambda: count(OF_A_PROJECT + len(own)))
    assert most == OF_A_PROJECT + len(own)
    assert await asyncio.gather(*own) == [None, None]
    await asyncio.gather(*flood)


@pytest.mark.parametrize("seconds", ["0.001", "nan", "-1", "1e9", "x"])
async def test_requests_without_requester_leave_nothing(projects: tuple[Bus, Bus], seconds: str) -> None:
    """After requests without a receiver of the replies or a reply subject, each kind is answered for both projects."""
    alpha, beta = projects
    for make in ALL:
        request = make(OWN)
        subject, body = request_subject(request.type, "alpha"), request.model_dump_json().encode()
        for reply in ("", f"_INBOX_nobody.{request.type}") * 10:
            await alpha.client.publish(subject, body, reply=reply, headers={TIMEOUT_HEADER: seconds})
    assert await asyncio.gather(*(ask(beta, make(OTHER), "beta") for make in ALL)) == [None] * len(ALL)
    assert await asyncio.gather(*(ask(alpha, make(OWN), "alpha") for make in ALL)) == [None] * len(ALL)


async def test_budget_is_one_for_all_kinds(world: Any, script: Any) -> None:
    """All kinds share one budget: what one kind has used no other kind has left."""
    async with world.service(request_rows=10).running():
        await world.emit(script.messages(OWN, 50, project="alpha"))
        await world.stored(50)
        alpha = await world.bus(Principal.CLIENT, project="alpha")
        assert await ask(alpha, ListEvents(limit=50), "alpha") is None
        assert {await ask(alpha, make(OWN), "alpha") for make in ALL} == {Code.BUSY}


async def ask(bus: Bus, request: Request[Any], project: str) -> Code | None:
    """The code of the refusal; None if it was not refused."""
    try:
        await bus.ask(request, project, timeout=PATIENCE)
    except RefusedError as error:
        return error.problem.code
    return None
