"""A real agent in a real sandbox, for measuring how long things take to reach it."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final

from nats.aio.msg import Msg

from sandherd.client import Herd
from sandherd.client.herd import new_task
from sandherd.contracts.commands import CommandHarness, TaskSpec
from sandherd.contracts.subjects import OUTPUT

# `perf_counter` is the system's monotonic clock: the same one inside the sandbox and outside.
LISTENER: Final = """
import sys, time
print("listening", flush=True)
for line in sys.stdin:
    print("heard", line.strip(), time.perf_counter(), flush=True)
"""

Arrival = Callable[[str], Awaitable[float]]


@asynccontextmanager
async def listening_agent(herd: Herd) -> AsyncIterator[tuple[str, Arrival]]:
    """A sandbox whose agent notes when each line reaches it. Yields its id and a way to await the time of a message."""
    received: dict[str, asyncio.Future[float]] = {}
    rest = ""

    def moment(text: str) -> "asyncio.Future[float]":
        return received.setdefault(text, asyncio.get_running_loop().create_future())

    async def on_output(msg: Msg) -> None:
        nonlocal rest
        # The worker publishes what it has read, redacted: a chunk may end within a line.
        *lines, rest = (rest + msg.data.decode(errors="replace")).split("\n")
        for line in lines:
            match line.split():
                case ["listening"]:
                    moment("listening").set_result(0.0)
                case ["heard", text, at]:
                    moment(text).set_result(float(at))

    task = new_task()
    spec = TaskSpec(text="listen", harness=CommandHarness(argv=["python3", "-c", LISTENER]))
    bus = herd.connection.bus
    output = await bus.client.subscribe(OUTPUT.pattern({"project": herd.project}), cb=on_output)
    try:
        sandbox = ""
        async with asyncio.timeout(60), herd.follow(task=task, fresh=True) as events:
            await herd.submit(spec, task=task)
            async for event in events:
                if event.type == "agent.started":
                    sandbox = event.subject
                    break
        await asyncio.wait_for(moment("listening"), 60)
        yield sandbox, moment
    finally:
        await output.unsubscribe()
        await herd.cancel(task)
