"""How long a message takes from `send_message` to its agent, beside an HTTP queue that is polled every 0.5 s.

Ours: a client's durable command, the relay, and the worker's credential and subscription; the time ends when the worker
has the text. The baseline, which is how others do it: a POST to a queue, and a client that polls it every half second.
Both are timed by one clock in one process, with the broker (and the relay, if it is given as a process) beside it. The
number of messages is fixed.
"""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from typing import Final

from aiohttp import ClientSession, web
from nats.aio.msg import Msg

from sandherd.bus.connection import Bus
from sandherd.contracts.commands import SendMessage
from sandherd.contracts.envelope import wrap
from sandherd.contracts.inbox_messages import InboxMessage, Receipt
from sandherd.contracts.names import new_name
from sandherd.contracts.subjects import DELIVER
from tests.bench.agents import listening_agent
from tests.bench.latency import Latency, latency_of
from tests.bench.recorder import Recorder
from tests.bench.stacks import stack

POLL_INTERVAL: Final = 0.5
_WITHIN: Final = 30.0


@asynccontextmanager
async def listening(worker: Bus, project: str, sandbox: str) -> AsyncIterator[Callable[[str], asyncio.Future[float]]]:
    """A worker of one sandbox that acknowledges messages. Yields a way to await the time of a message's arrival."""
    arrivals: dict[str, asyncio.Future[float]] = {}

    def arrival(message: str) -> "asyncio.Future[float]":
        return arrivals.setdefault(message, asyncio.get_running_loop().create_future())

    async def on_message(msg: Msg) -> None:
        message = InboxMessage.model_validate_json(msg.data)
        moment = arrival(message.message)
        if not moment.done():
            moment.set_result(time.perf_counter())
        await msg.respond(Receipt(message=message.message, outcome="acknowledged").model_dump_json().encode())

    subscription = await worker.client.subscribe(DELIVER.fill(project=project, sandbox=sandbox), cb=on_message)
    await worker.client.flush()
    try:
        yield arrival
    finally:
        await subscription.unsubscribe()


async def send(client: Bus, project: str, sandbox: str, message: str) -> None:
    """Publish one command as the client library does."""
    data = SendMessage(message=message, sandbox=sandbox, content=message)
    command = wrap(
        data,
        data.type,
        source="/sandherd/client/bench",
        sequence=1,
        project=project,
        subject=sandbox,
        time=datetime.now(UTC),
    )
    await client.publish_command(command)


async def measure(recorder: Recorder) -> None:
    """Measure messages to a real agent on a whole stack, beside the poll."""
    async with stack() as (herd, _), listening_agent(herd) as (sandbox, arrival):
        for _ in recorder.each("message.delivery"):
            sent = await measure_relay(herd.connection.bus, herd.project, sandbox, arrival)
            recorder.add("message.delivery", sent, await measure_poll())


async def measure_relay(
    client: Bus,
    project: str,
    sandbox: str,
    arrival: Callable[[str], Awaitable[float]],
    *,
    count: int = 100,
    between: float = 0.005,
) -> Latency:
    """Send one message after the other to a running agent, at random moments.

    `arrival(message)` returns the time (`time.perf_counter`) at which the agent has the message: that of `listening`,
    or that of a real agent which prints what it reads.
    """
    took = []
    for _ in range(min(count, 2000)):
        message = new_name("msg")
        there = asyncio.ensure_future(arrival(message))
        begun = time.perf_counter()
        await send(client, project, sandbox, message)
        took.append(await asyncio.wait_for(there, _WITHIN) - begun)
        await asyncio.sleep(random.uniform(0, 2 * between))
    return latency_of(took)


@asynccontextmanager
async def _queue_server() -> AsyncIterator[str]:
    """A queue behind HTTP: POST adds a message, GET takes all messages."""
    waiting: list[str] = []

    async def put(request: web.Request) -> web.Response:
        waiting.append((await request.json())["id"])
        return web.json_response({"status": "queued"})

    async def take(_request: web.Request) -> web.Response:
        taken, waiting[:] = list(waiting), []
        return web.json_response(taken)

    app = web.Application()
    app.add_routes([web.post("/messages", put), web.get("/messages", take)])
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/messages"
    finally:
        await runner.cleanup()


async def measure_poll(*, count: int = 20, interval: float = POLL_INTERVAL) -> Latency:
    """Measure the HTTP queue with an agent that polls every `interval` seconds: about `count * interval / 2` s."""
    arrived: dict[str, asyncio.Future[float]] = {}

    async def poll(http: ClientSession, url: str) -> None:
        while True:
            async with http.get(url) as reply:
                for message in await reply.json():
                    arrived[message].set_result(time.perf_counter())
            await asyncio.sleep(interval)

    took = []
    async with _queue_server() as url, ClientSession() as http:
        polling = asyncio.create_task(poll(http, url))
        try:
            for _ in range(min(count, 500)):
                await asyncio.sleep(random.uniform(0, interval))
                message = new_name("msg")
                there = arrived.setdefault(message, asyncio.get_running_loop().create_future())
                begun = time.perf_counter()
                async with http.post(url, json={"id": message}):
                    pass
                took.append(await asyncio.wait_for(there, _WITHIN) - begun)
        finally:
            polling.cancel()
            with suppress(asyncio.CancelledError):
                await polling
    return latency_of(took)
