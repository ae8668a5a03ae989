"""Connections that never authenticate take the broker's places only until its authentication time-out."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from sandherd.bus.identity.capacity import MIN_CONNECTIONS, Capacity
from sandherd.contracts.subjects import Principal
from sandherd.stack.broker import Broker
from tests.patience import PATIENCE

P = Principal
EXCESS = 40


@pytest.fixture
async def small(own_directory: Path) -> AsyncIterator[Broker]:
    """A broker that accepts few connections."""
    broker = Broker(own_directory, capacity=Capacity(MIN_CONNECTIONS))
    await broker.start()
    await broker.provision()
    yield broker
    await broker.kill()


class Attack:
    """Connections without CONNECT, each of which is opened again when it is closed, until `ended`."""

    def __init__(self, url: str) -> None:
        self._host, self._port = url.removeprefix("nats://").split(":")
        self.ended = asyncio.Event()
        self.answers: set[bytes] = set()
        self.full = asyncio.Event()
        """Set when the broker has refused one, as all its places are taken."""

    async def hold(self) -> None:
        """Hold one place, repeatedly, until the broker closes the connection."""
        while not self.ended.is_set():
            with suppress(OSError):
                reader, writer = await asyncio.open_connection(self._host, self._port)
                received = await reader.read()
                writer.close()
                self._note(received)

    def _note(self, received: bytes) -> None:
        _, found, reason = received.partition(b"-ERR ")
        if found:
            self.answers.add(reason.strip())
        if b"maximum connections exceeded" in reason:
            self.full.set()


@asynccontextmanager
async def attacked(broker: Broker) -> AsyncIterator[Attack]:
    """Open more connections than the broker accepts, until the end of the block."""
    attack = Attack(broker.url)
    async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as group:
        for _ in range(MIN_CONNECTIONS + EXCESS):
            group.create_task(attack.hold())
        await attack.full.wait()
        try:
            yield attack
        finally:
            attack.ended.set()


async def test_users_connect_again_after_silent_connections(small: Broker) -> None:
    """The attack takes all places. When no more are opened, the broker closes all of them, and a user connects."""
    async with attacked(small) as attack:
        pass
    assert b"'Authentication Timeout'" in attack.answers
    async with small.bus(P.CLIENT, project="p1", connect_timeout=PATIENCE) as bus:
        await bus.flush(timeout=PATIENCE)


async def test_connected_services_work_during_silent_connections(small: Broker) -> None:
    """A service that connected before keeps its connection, and streams store."""
    async with small.bus(P.SPAWNER) as spawner, attacked(small):
        for number in range(20):
            await spawner.publish(f"$KV.tasks.p1.task-{number}", b"{}", msg_id=f"silent-{number}")


async def test_timeout_leaves_time_for_tls(small: Broker) -> None:
    """No authentication time-out is configured: the broker's own is 2 s, and with TLS longer than that of TLS."""
    config = next(small.home.glob("nats/nats.conf")).read_text()
    assert '"authorization"' not in config
