"""How long nothing can be published after the leader of EVENTS is killed, beside how long there is no leader.

Ours: one event, published as services do, which retry until it is acknowledged. The baseline: a bare client that tries
every 10 ms, and so finds the moment at which the servers have elected another leader. They elect one 4 to 9 s after the
last message of the killed leader; each server chooses its delay at random. Both clients are connected to a server that
stays up.
"""

import asyncio
import time
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import nats.errors
import nats.js.errors

from sandherd.bus.connection import Bus, ConnectionIdentity
from sandherd.contracts.subjects import Principal
from sandherd.stack.broker import Broker
from sandherd.stack.nats import NatsServer
from sandherd.stack.server_health import request_health
from tests.bench.recorder import Recorder

_SUBJECT: Final = "sandherd.v1.event.p1.fleet.monitor.conductor_reported"
_TRIES_EVERY: Final = 0.01


async def measure(recorder: Recorder) -> None:
    """Measure seconds from the kill until the next acknowledged event, for us and for a bare client."""
    with TemporaryDirectory(prefix="losing-") as directory:
        broker = Broker(Path(directory), size=3)
        try:
            await broker.start()
            for run in recorder.each("cluster.lost_leader"):
                recorder.add("cluster.lost_leader", *await _lose(broker, run))
                await _restart_killed_server(broker)
        finally:
            await broker.kill()


async def _lose(broker: Broker, number: int) -> tuple[float, float]:
    leader = await _leader(broker)
    other = next(server for server in broker.servers if server is not leader)
    async with AsyncExitStack() as stack:
        mine, bare = [await stack.enter_async_context(_connected(broker, other)) for _ in range(2)]
        # Published before the kill, so that both connections are known to work.
        await mine.publish_stored(_SUBJECT, b"{}", msg_id=f"before-{number}")
        begun = time.monotonic()
        await leader.kill()
        return await asyncio.gather(_publish_number(mine, number, begun), _publish_until_stored(bare, begun))


def _connected(broker: Broker, server: NatsServer) -> AbstractAsyncContextManager[Bus]:
    who = ConnectionIdentity.file(broker.credentials(Principal.MONITOR))
    return Bus.open(server.url, name="monitor", identity=who, inbox="_INBOX_monitor", connect_timeout=5)


async def _publish_number(bus: Bus, number: int, begun: float) -> float:
    await bus.publish_stored(_SUBJECT, b"{}", msg_id=f"after-{number}")
    return time.monotonic() - begun


async def _publish_until_stored(bus: Bus, begun: float) -> float:
    while True:
        try:
            await bus.js.publish(_SUBJECT, b"{}", timeout=1)
            return time.monotonic() - begun
        except (TimeoutError, nats.errors.Error, nats.js.errors.Error):
            await asyncio.sleep(_TRIES_EVERY)


async def _leader(broker: Broker) -> NatsServer:
    async with broker.provisioner() as js:
        cluster = (await js.stream_info("EVENTS")).cluster
    assert cluster is not None
    return next(server for server in broker.servers if server.membership and server.membership.name == cluster.leader)


async def _restart_killed_server(broker: Broker) -> None:
    """Restart the killed server, and wait until every server has caught up."""
    await asyncio.gather(*(server.start() for server in broker.servers if not server.child.alive))
    while sorted((await request_health(broker.url, broker.watcher, 3)).values()) != ["ok"] * 3:
        await asyncio.sleep(0.1)
