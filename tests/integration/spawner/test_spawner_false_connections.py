"""Connections that state false names count as those of their own credential, or not at all."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, suppress
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from sandherd.bus.connection_list import BrokerConnection, BrokerConnections
from sandherd.bus.identity.keys import Key, KeyKind, read_claims, sign_claims
from sandherd.contracts.subjects import Principal
from sandherd.stack.broker import Broker
from spawner.sandboxes.flood_limits import ExceededLimit, FloodLimits, FloodMeter, FloodResult
from tests.patience import PATIENCE
from tests.polling import eventually
from tests.raw_connections import RawConnection, token_and_key

pytestmark = pytest.mark.own_broker  # the guard reads all connections of the server

P = Principal
LIMITS = FloodLimits(
    messages=100, project_messages=3000, bytes=1024 * 1024, person_connections=4, client_messages=100_000
)
MANY = 40
"""A number of connections that, opened at once, exceed what `LIMITS` permit a sandbox."""
TOO_MANY = 400
"""A number of connections with large CONNECTs whose list exceeds what nats-server buffers for a client."""
LARGE = "<" * 30_000
"""A name that takes six times its bytes in the broker's list, where this character is escaped."""


class Guard:
    """The flood guard's checks, which are made when a test calls for them."""

    def __init__(self, table: BrokerConnections) -> None:
        self._table, self._meter, self._seconds = table, FloodMeter(LIMITS), count()
        self.rows: list[BrokerConnection] = []

    async def check(self) -> FloodResult:
        self.rows = await self._table.read()
        return self._meter.evaluate(self.rows, float(next(self._seconds)))


@pytest.fixture
async def guard(herd: Broker) -> AsyncIterator[Guard]:
    """A guard that has checked once."""
    async with BrokerConnections.open(herd.url, herd.spawner_identity / "connections.creds") as table:
        guard = Guard(table)
        await guard.check()
        yield guard


def forged(token: str, **changed: Any) -> str:
    """A token with the same claims, signed by a key that the broker does not know."""
    return sign_claims({**read_claims(token), **changed}, Key.new(KeyKind.ACCOUNT), int(time.time()))


async def attempt(herd: Broker, token: str, key: Key, **fields: Any) -> bytes:
    """Open a connection, and close it. Returns the broker's reply."""
    connection = await RawConnection.open(herd.url)
    try:
        return await connection.connect(token, key, **fields)
    finally:
        await connection.close()


@pytest.mark.parametrize("is_forged", [True, False], ids=["forged", "repeated"])
async def test_refused_connections_end_no_sandbox(herd: Broker, guard: Guard, is_forged: bool) -> None:
    """A program without a credential ends no sandbox by naming it in a token, or by repeating its worker's token."""
    path = herd.credentials(P.WORKER, project="p1", sandbox="sbx-1")
    token, key = token_and_key(path)
    false = forged(token) if is_forged else token
    for _ in range(MANY):
        assert b"Authorization Violation" in await attempt(herd, false, Key.new(KeyKind.USER))
    assert (await guard.check()).cut_offs == ()
    for _ in range(MANY):
        await attempt(herd, token, key)
    assert [(found.key, found.excess) for found in (await guard.check()).cut_offs] == [
        (("p1", "sbx-1"), ExceededLimit.MESSAGES)
    ]


@pytest.mark.parametrize("field", ["user", "nkey"])
async def test_excess_of_one_user_is_not_that_of_another(herd: Broker, guard: Guard, field: str) -> None:
    """Many connections that each name another credential's public key, or a new one, do not revoke that credential."""
    token, key = token_and_key(herd.credentials(P.CLIENT, project="p1"))
    _, other = token_and_key(herd.credentials(P.CLIENT, project="p2"))
    async with AsyncExitStack() as stack:
        for number in range(LIMITS.person_connections + 2):
            connection = await RawConnection.open(herd.url)
            stack.push_async_callback(connection.close)
            stated = other.public if number % 2 else Key.new(KeyKind.USER).public
            assert await connection.connect(token, key, **{field: stated}) == b"PONG\r\n"
        found = [await guard.check() for _ in range(3)]
    assert {abuse.user.public_key for abuse in found[-1].abuses} == {key.public}
    assert len(found[-1].closed) == 2


async def test_second_connect_hides_nothing(herd: Broker, guard: Guard) -> None:
    """A worker that sends a second CONNECT with another sandbox's token is cut off; its messages count as its own."""
    token, key = token_and_key(herd.credentials(P.WORKER, project="p1", sandbox="sbx-1"))
    false = forged(token, name="sbx-2")
    for stated in (false, "", LARGE):
        connection = await RawConnection.open(herd.url)
        assert await connection.connect(token, key) == b"PONG\r\n"
        assert await connection.send(b"PUB sandherd.v1.output.p1.sbx-1 1\r\nx\r\n" * 600 + b"PING\r\n") == b"PONG\r\n"
        # usually "Authorization Violation"; while the account's claims are applied, another limit of the stated token
        assert (await connection.connect(stated, key)).startswith(b"-ERR ")
        await connection.closed()
        await connection.close()
    found = await guard.check()
    assert {(cut.key, cut.excess) for cut in found.cut_offs} == {(("p1", "sbx-1"), ExceededLimit.MESSAGES)}


async def test_large_refused_connects_do_not_blind_the_guard(herd: Broker, guard: Guard) -> None:
    """The guard still checks when refused connections with large CONNECTs exceed what the broker sends in one list."""
    path = herd.credentials(P.CLIENT, project="p1")
    _, key = token_and_key(path)
    for _ in range(TOO_MANY):
        await attempt(herd, "x.e30.x", key, name=LARGE)
    async with AsyncExitStack() as stack:
        await crowd_of(herd, stack, LIMITS.person_connections + 1, path)
        assert len((await seen(guard)).closed) == 1


async def test_large_names_of_open_connections_do_not_blind_the_guard(herd: Broker, guard: Guard) -> None:
    """The guard still checks when open connections of users, who may have many, have large names."""
    path = herd.credentials(P.CLIENT, project="p1")
    async with AsyncExitStack() as stack:
        await crowd_of(herd, stack, TOO_MANY, path, name=LARGE[:24_000])
        assert len((await seen(guard)).closed) == TOO_MANY - LIMITS.person_connections


async def crowd_of(herd: Broker, stack: AsyncExitStack, number: int, path: Path, **fields: Any) -> None:
    """Open this number of connections with one credential."""
    token, key = token_and_key(path)
    for _ in range(number):
        connection = await RawConnection.open(herd.url)
        stack.push_async_callback(connection.close)
        assert await connection.connect(token, key, **fields) == b"PONG\r\n"


async def seen(guard: Guard) -> FloodResult:
    """The first check that succeeds. On a busy machine one or two may find that a page is too large."""
    async with asyncio.timeout(PATIENCE):
        while True:
            with suppress(TimeoutError):
                return await guard.check()


async def test_connections_between_two_checks_are_counted(herd: Broker, guard: Guard) -> None:
    """Connections that were open together between two checks count; the same number one after the other does not."""
    token, key = token_and_key(herd.credentials(P.CLIENT, project="p1"))
    other, its_key = token_and_key(herd.credentials(P.CLIENT, project="p2"))
    found = FloodResult()
    for _ in range(3):
        crowd = [await RawConnection.open(herd.url) for _ in range(LIMITS.person_connections + 1)]
        assert {await connection.connect(token, key) for connection in crowd} == {b"PONG\r\n"}
        await asyncio.gather(*(connection.close() for connection in crowd))
        for _ in range(2 * LIMITS.person_connections):
            assert await attempt(herd, other, its_key) == b"PONG\r\n"
        await eventually(lambda: _all_closed(herd, key))
        found = await guard.check()
    assert [(abuse.user.public_key, abuse.connections) for abuse in found.abuses] == [
        (key.public, LIMITS.person_connections + 1)
    ]


async def _all_closed(herd: Broker, key: Key) -> bool:
    async with BrokerConnections.open(herd.url, herd.spawner_identity / "connections.creds") as table:
        return not [row for row in await table.read() if row.open and row.user.public_key == key.public]
