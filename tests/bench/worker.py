"""What one worker can do and what it costs: events per second, memory beside its agent, and the time of its start.

Each is measured with a real worker process on a real broker, beside a minimal program that connects and publishes. The
number of events is fixed.
"""

import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from nats.aio.msg import Msg

from sandherd.bus.connection import Bus
from sandherd.contracts.names import new_name, new_uuid
from sandherd.contracts.subjects import Principal, event_subject
from sandherd.stack.broker import Broker
from tests.bench.emit_latency import measure_emit, measure_redaction
from tests.bench.latency import Latency, latency_of
from tests.bench.recorder import Recorder
from tests.bench.tree_watch import measure_idle_tree
from tests.integration.worker.conftest import PROJECT, Sandbox
from tests.integration.worker.desk import Desk

WITHIN: Final = 120.0
_EVENTS: Final = 6_000  # a worker publishes 8,000 at once, and then 800 per second
_WINDOW: Final = 256
"""The number of events that a worker has in flight."""
_STARTS: Final = 6
_PACKAGES: Final = Path(__file__).parent.parent / "drivers" / "scripted"
_CONTENT: Final = "what an agent says in one event, of a usual length: a sentence or two about what it does next" * 2
_TALKS: Final = """
import json, os
out = os.fdopen(int(os.environ["SANDHERD_EVENTS_FD"]), "w")
for _ in range({count}):
    out.write(json.dumps({{"type": "agent.message", "data": {{"content": {content!r}, "content_length": 1}}}}) + "\\n")
"""
BARE: Final = """
import asyncio, os, sys, nats

async def main():
    client = await nats.connect(os.environ["NATS_URL"], user_credentials=os.environ["SANDHERD_CREDENTIALS"])
    await client.publish(sys.argv[1], b"{}")
    await client.flush()
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    await client.close()

asyncio.run(main())
"""
"""A program that connects, publishes, and waits until its standard input ends."""


@dataclass(frozen=True)
class ReceivedEvent:
    """The times of the first and the last of some messages, and the document of the last one."""

    first: float
    last: float
    document: bytes


@dataclass(frozen=True)
class Bench:
    """A broker, a desk, a connection that receives everything, and the directory of sandboxes."""

    broker: Broker
    desk: Desk
    reader: Bus
    home: Path

    def sandbox(self) -> Sandbox:
        """A new sandbox."""
        name = new_name("sbx")
        return Sandbox(self.broker, self.desk, self.reader, self.home / name, name)

    async def bare(self, sandbox: str, event: str) -> asyncio.subprocess.Process:
        """Start the minimal program, which publishes on the subject of this sandbox and event."""
        credentials = str(self.broker.credentials(Principal.WORKER, project=PROJECT, sandbox=sandbox))
        subject = event_subject(PROJECT, sandbox, event)
        environment = {**os.environ, "NATS_URL": self.broker.url, "SANDHERD_CREDENTIALS": credentials}
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", BARE, subject), env=environment, stdin=asyncio.subprocess.PIPE
        )


@asynccontextmanager
async def bench() -> AsyncIterator[Bench]:
    """Start a broker for this measurement."""
    with tempfile.TemporaryDirectory(prefix="bench-") as directory:
        broker = Broker(Path(directory) / "broker")
        await broker.start()
        try:
            async with broker.bus(Principal.SPAWNER) as spawner, broker.bus(Principal.OPERATOR) as operator:
                desk = Desk(broker, spawner)
                await desk.open()
                yield Bench(broker, desk, operator, Path(directory))
        finally:
            await broker.stop()


@asynccontextmanager
async def hearing(reader: Bus, subject: str, count: int = 1) -> AsyncIterator["asyncio.Future[ReceivedEvent]"]:
    """Receive `count` messages on this subject."""
    first_event: asyncio.Future[ReceivedEvent] = asyncio.get_running_loop().create_future()
    moments: list[float] = []

    async def on_message(msg: Msg) -> None:
        moments.append(time.perf_counter())
        if len(moments) == count:
            first_event.set_result(ReceivedEvent(moments[0], moments[-1], msg.data))

    listening = await reader.client.subscribe(subject, cb=on_message)
    await reader.client.flush()
    try:
        yield first_event
    finally:
        await listening.unsubscribe()


async def measure(recorder: Recorder) -> None:
    """Measure all figures of one worker."""
    for _ in recorder.each("worker.idle_tree"):
        idle, empty = await measure_idle_tree()
        recorder.add("worker.idle_tree", idle * 100, empty * 100)
    for _ in recorder.each("worker.emit"):
        recorder.add("worker.emit", *await measure_emit())
    for _ in recorder.each("worker.emit_redaction"):
        recorder.add("worker.emit_redaction", *await measure_redaction())
    async with bench() as at:
        for _ in recorder.each("worker.events"):
            recorder.add("worker.events", *await measure_events(at))
        for _ in recorder.each("worker.memory"):
            recorder.add("worker.memory", *await measure_memory(at))
        for _ in recorder.each("worker.start"):
            recorder.add("worker.start", *await measure_worker_start(at))


# --- events a second


async def measure_events(at: Bench) -> tuple[float, float]:
    """Measure a worker whose program publishes as much as it can, beside a connection that publishes the same."""
    sandbox = at.sandbox()
    sandbox.python(_TALKS.format(count=_EVENTS, content=_CONTENT))
    subject = event_subject(PROJECT, sandbox.name, "agent.message")
    async with hearing(at.reader, subject, _EVENTS) as first_event:
        await sandbox.start()
        received_event = await asyncio.wait_for(first_event, WITHIN)
    await sandbox.ended()
    return _EVENTS / (received_event.last - received_event.first), await _bare_events(at, received_event.document)


async def _bare_events(at: Bench, document: bytes) -> float:
    """Publish the same number of documents of the same size, each acknowledged by the stream, in the same window."""
    name = new_name("sbx")
    subject = event_subject(PROJECT, name, "agent.message")
    async with (
        at.broker.bus(Principal.WORKER, project=PROJECT, sandbox=name) as bus,
        hearing(at.reader, subject, _EVENTS) as first_event,
    ):
        numbers = iter(range(_EVENTS))

        async def publish() -> None:
            for _ in numbers:
                await bus.publish_stored(subject, document, msg_id=str(new_uuid()))

        await asyncio.gather(*(publish() for _ in range(_WINDOW)))
        received_event = await asyncio.wait_for(first_event, WITHIN)
    return _EVENTS / (received_event.last - received_event.first)


# --- memory


async def measure_memory(at: Bench) -> tuple[dict[str, float], float]:
    """Measure MiB of a worker beside an agent in a driver that has published 300 events, and of the minimal program."""
    sandbox = at.sandbox()
    _echo(sandbox, "\n".join(f"say {_CONTENT}" for _ in range(300)))
    waiting = event_subject(PROJECT, sandbox.name, "agent.waiting")
    async with hearing(at.reader, waiting) as first_event:
        await sandbox.start()
        await asyncio.wait_for(first_event, WITHIN)
    assert sandbox.process is not None
    ours = _memory(sandbox.process.pid)
    sandbox.process.terminate()
    await sandbox.ended()
    name = new_name("sbx")
    async with hearing(at.reader, event_subject(PROJECT, name, "agent.message")) as first_event:
        bare = await at.bare(name, "agent.message")
        await asyncio.wait_for(first_event, WITHIN)
    baseline = _memory(bare.pid)["now"]
    await bare.communicate(b"")
    return ours, baseline


def _memory(process: int) -> dict[str, float]:
    """The memory that it has now, and its maximum so far."""
    lines = dict(line.split(":", 1) for line in Path(f"/proc/{process}/status").read_text().splitlines())
    return {name: round(int(lines[key].split()[0]) / 1024, 1) for name, key in (("now", "VmRSS"), ("peak", "VmHWM"))}


def _echo(sandbox: Sandbox, text: str) -> None:
    """The harness of the echo driver, which is light; it takes the place of an ACP agent's."""
    toolchains = sandbox.state / "toolchains"
    python = toolchains / "acp" / "bin" / "python"
    python.parent.mkdir(parents=True)
    path = f'export PYTHONPATH="$PYTHONPATH:{_PACKAGES}"'
    python.write_text(f"#!/bin/sh\n{path}\nexec {sys.executable} -P -m echo_driver\n")
    python.chmod(0o755)
    spec: dict[str, Any] = {"text": text, "harness": {"kind": "acp", "argv": ["agent"]}, "linger_seconds": 600}
    (sandbox.state / "task.json").write_text(json.dumps(spec))
    sandbox.environment["SANDHERD_TOOLCHAINS"] = str(toolchains)


# --- the start


async def measure_worker_start(at: Bench, *, count: int = _STARTS) -> tuple[Latency, Latency]:
    """Measure from a worker's start to `agent.started`, and from the minimal program's to its message, in turns."""
    ours, baseline = [], []
    for number in range(count + 1):
        times = await _start(at), await _start_bare(at)
        if number:  # the first ones warm the file cache
            ours.append(times[0])
            baseline.append(times[1])
    return latency_of(ours), latency_of(baseline)


async def _start(at: Bench) -> float:
    sandbox = at.sandbox()
    sandbox.task("true")
    async with hearing(at.reader, event_subject(PROJECT, sandbox.name, "agent.started")) as first_event:
        begun = time.perf_counter()
        await sandbox.start()
        received_event = await asyncio.wait_for(first_event, WITHIN)
    await sandbox.ended()
    return received_event.first - begun


async def _start_bare(at: Bench) -> float:
    name = new_name("sbx")
    async with hearing(at.reader, event_subject(PROJECT, name, "agent.started")) as first_event:
        begun = time.perf_counter()
        program = await at.bare(name, "agent.started")
        received_event = await asyncio.wait_for(first_event, WITHIN)
    await program.communicate(b"")
    return received_event.first - begun
