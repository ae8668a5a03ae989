"""How long it takes from `submit` to the agent's start, beside the same worker started by hand.

Ours: a client's durable command, the scheduler, the records, an isolated sandbox, and the credential. By hand: the same
worker program as a plain process, which gets its credential at once. Both times end when the client receives
`agent.started`, on one clock. The number of starts is fixed.
"""

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from nats.aio.msg import Msg

from sandherd.bus.connection import Bus
from sandherd.client import Herd
from sandherd.client.herd import new_task, task_spec
from sandherd.contracts.subjects import Principal, event_subject
from sandherd.stack.broker import Broker
from tests.bench.latency import Latency, latency_of
from tests.integration.worker.conftest import PROJECT, Sandbox
from tests.integration.worker.desk import Desk

WITHIN: Final = 60.0
_AT_MOST: Final = 200


async def measure_submit(herd: Herd, *, count: int = 8) -> Latency:
    """Submit one task after the other, each to its end; the time is that to `agent.started`."""
    took = []
    for number in range(min(count, _AT_MOST) + 1):
        task, started = new_task(), 0.0
        async with asyncio.timeout(WITHIN), herd.follow(task=task, fresh=True) as events:
            begun = time.perf_counter()
            await herd.submit(task_spec("nothing", ["true"]), task=task)
            async for event in events:
                if event.type == "agent.started":
                    started = time.perf_counter()
        if number:  # the first one warms the file cache for both
            took.append(started - begun)
    return latency_of(took)


async def measure_by_hand(*, count: int = 8) -> Latency:
    """Start the same worker by hand, one after the other, each to its end."""
    took = []
    with tempfile.TemporaryDirectory(prefix="hand-") as directory:
        async with _desk(Path(directory)) as (broker, desk, operator):
            for number in range(min(count, _AT_MOST) + 1):
                sandbox = Sandbox(broker, desk, operator, Path(directory) / str(number), f"sbx-{number}")
                sandbox.task("true")
                seconds = await _start(operator, sandbox)
                if number:
                    took.append(seconds)
    return latency_of(took)


@asynccontextmanager
async def _desk(directory: Path) -> AsyncIterator[tuple[Broker, Desk, Bus]]:
    broker = Broker(directory / "broker")
    await broker.start()
    try:
        async with broker.bus(Principal.SPAWNER) as spawner, broker.bus(Principal.OPERATOR) as operator:
            desk = Desk(broker, spawner)
            await desk.open()
            yield broker, desk, operator
    finally:
        await broker.stop()


async def _start(operator: Bus, sandbox: Sandbox) -> float:
    received: asyncio.Future[float] = asyncio.get_running_loop().create_future()

    async def on_started(_msg: Msg) -> None:
        if not received.done():
            received.set_result(time.perf_counter())

    listening = await operator.client.subscribe(event_subject(PROJECT, sandbox.name, "agent.started"), cb=on_started)
    await operator.client.flush()
    begun = time.perf_counter()
    await sandbox.start()
    try:
        return await asyncio.wait_for(received, WITHIN) - begun
    finally:
        await listening.unsubscribe()
        await sandbox.ended()
