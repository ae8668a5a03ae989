"""How soon the monitor acts: from an event to its command, and after one of two replicas was killed.

Real processes of the monitor with their defaults run on a real broker, beside 1,000 events per second of other
sandboxes. The times are the broker's: when it stored the event and the command. A decision takes at least three writes;
the baseline is three events that another client stores one after the other at the same time.
"""

import asyncio
import os
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any, Final

from monitor.partition_plan import partition_of
from sandherd.bus.auth.permissions import Permissions
from sandherd.bus.connection import Bus, ConnectionIdentity
from sandherd.bus.direct_get import StoredMessage, read_batch
from sandherd.bus.identity import Registrar, write_secret
from sandherd.contracts.envelope import Envelope, wrap
from sandherd.contracts.events import EVENTS
from sandherd.contracts.subjects import Principal, event_subject
from sandherd.stack.broker import Broker
from tests.bench.latency import Latency, latency_of
from tests.bench.recorder import Recorder

RATE: Final = 1000
_TICK: Final = 0.01
_SANDBOXES: Final = 100
_DECISIONS: Final = 100
_EVERY: Final = 0.1
_KILLS: Final = 2
_PARTITIONS: Final = 8
_WITHIN: Final = 120.0
_PROJECT: Final = "default"
_names: Final = count()


async def measure(recorder: Recorder) -> None:
    """Measure both figures, on one broker."""
    async with AsyncExitStack() as stack:
        broker = Broker(Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="deciding-"))))
        stack.push_async_callback(broker.stop)
        await broker.start()
        bus = await stack.enter_async_context(stream_admin(broker))
        await stack.enter_async_context(_load(bus))
        replicas = Replicas(broker, bus)
        stack.push_async_callback(replicas.stop)
        await replicas.start(1)
        await _warm_up(bus)
        for _ in recorder.each("monitor.decision"):
            recorder.add("monitor.decision", *await asyncio.gather(_measure_decisions(bus), _measure_writes(bus)))
        for _ in recorder.each("monitor.takeover"):
            recorder.add("monitor.takeover", await _measure_takeover(replicas))


@asynccontextmanager
async def stream_admin(broker: Broker) -> AsyncIterator[Bus]:
    """A connection that may publish as every sandbox, and read every stream."""
    path = broker.home / "creds" / "bench.creds"
    everything = Permissions(publish=(">",), subscribe=(">",))
    write_secret(path, Registrar(broker.identity).mint_stream_admin(24 * 3600, everything))
    async with Bus.open(
        broker.url, name="bench", identity=ConnectionIdentity.file(path), inbox="_INBOX_provisioner"
    ) as bus:
        yield bus


# --- events --------------------------------------------------------------------------------------------------------


def _event(sandbox: str, sequence: int, kind: str, **fields: Any) -> Envelope[Any]:
    return wrap(
        EVENTS[kind](**fields), kind, source=f"/sandherd/sandbox/{sandbox}", sequence=sequence + 1, project=_PROJECT,
        subject=sandbox, time=datetime.now(UTC), taskid="task-1", sandboxid=sandbox,
    )  # fmt: skip


def _calls(sandbox: str, number: int, command: str) -> Iterator[Envelope[Any]]:
    call = f"call-{number}"
    yield _event(sandbox, number, "agent.tool_use", tool="Bash", tool_use_id=call, input={"command": command})
    yield _event(sandbox, number, "agent.tool_result", tool_use_id=call, result=f"{command}\n" * 40)


def _loop(sandbox: str) -> list[Envelope[Any]]:
    """A sandbox in a loop: its last event leads to a message to the agent."""
    started = _event(
        sandbox, 1, "agent.started", timestamp=datetime.now(UTC), sdk="command", task="t", task_description_length=1
    )
    return [started, *(event for number in range(4) for event in _calls(sandbox, 2 + number, "make test"))]


@asynccontextmanager
async def _load(bus: Bus) -> AsyncIterator[None]:
    """Events of other sandboxes at work: each call differs from the others."""
    documents = [
        (event_subject(_PROJECT, event.subject, event.type), event.to_json())
        for number in range(10)
        for sandbox in range(_SANDBOXES)
        for event in _calls(f"sbx-load-{sandbox}", number, f"cat notes-{number}")
    ]

    async def publish() -> None:
        begun = time.monotonic()
        for place in count():
            if place % int(RATE * _TICK) == 0:
                await asyncio.sleep(max(0.0, begun + place / RATE - time.monotonic()))
            subject, document = documents[place % len(documents)]
            await bus.client.publish(subject, document, headers={"Nats-Msg-Id": f"load-{place}"})

    task = asyncio.create_task(publish())
    try:
        yield
    finally:
        task.cancel()


async def _publish_loop(bus: Bus, sandbox: str) -> int:
    """Publish a loop. Returns the sequence of the event that leads to a command."""
    *before, last = _loop(sandbox)
    for event in before:
        await bus.publish_event(event)
    return (await bus.publish_event(last)).seq


async def _warm_up(bus: Bus) -> None:
    """Wait until the replica has read all events and has acted."""
    sandbox = f"sbx-{next(_names)}"
    await _publish_loop(bus, sandbox)
    await _commanded(bus, [sandbox])


# --- times ---------------------------------------------------------------------------------------------------------


async def _measure_decisions(bus: Bus) -> Latency:
    sandboxes = [f"sbx-{next(_names)}" for _ in range(_DECISIONS)]
    publishing = []
    for sandbox in sandboxes:
        publishing.append(asyncio.create_task(_publish_loop(bus, sandbox)))
        await asyncio.sleep(_EVERY)
    causes = [await _stored_at(bus, sequence) for sequence in await asyncio.gather(*publishing)]
    commanded = await _commanded(bus, sandboxes)
    return latency_of(
        [(commanded[sandbox] - cause).total_seconds() for sandbox, cause in zip(sandboxes, causes, strict=True)]
    )


async def _measure_writes(bus: Bus) -> Latency:
    """Measure three acknowledged events, one after the other."""
    took = []
    for number in range(_DECISIONS):
        begun = time.perf_counter()
        for event in _calls("sbx-baseline", number, f"ls {number}"):
            await bus.publish_event(event)
        await bus.publish_event(_event("sbx-baseline", number, "agent.waiting"))
        took.append(time.perf_counter() - begun)
        await asyncio.sleep(_EVERY)
    return latency_of(took)


async def _stored_at(bus: Bus, sequence: int) -> datetime:
    [stored] = await read_batch(
        bus, "EVENTS", "sandherd.v1.event.>", first=sequence, limit=1, max_bytes=1024 * 1024
    )  # fmt: skip
    return stored.at


async def _commanded(bus: Bus, sandboxes: list[str]) -> dict[str, datetime]:
    """When the first command about each of these sandboxes was stored, once there is one for all."""
    found: dict[str, datetime] = {}
    first = 1
    async with asyncio.timeout(_WITHIN):
        while not found.keys() >= {*sandboxes}:
            for stored in await _all(bus, "COMMANDS", "sandherd.v1.command.>", first):
                first = stored.sequence + 1
                found.setdefault(Envelope[Any].model_validate_json(stored.data).subject, stored.at)
            await asyncio.sleep(_EVERY)
    return found


async def _all(bus: Bus, stream: str, subject: str, first: int = 1) -> list[StoredMessage]:
    return await read_batch(bus, stream, subject, first=first, limit=1000, max_bytes=4 * 1024 * 1024)


# --- takeover ------------------------------------------------------------------------------------------------------


class Replicas:
    """The running processes of the monitor."""

    def __init__(self, broker: Broker, bus: Bus) -> None:
        self._settings = broker.settings(Principal.MONITOR)
        self._running: list[asyncio.subprocess.Process] = []
        self.bus = bus

    async def start(self, wanted: int) -> None:
        """Start replicas until this number runs, and wait until they share the partitions evenly."""
        environment = os.environ | {
            "NATS_URL": self._settings.nats_url, "SANDHERD_CREDENTIALS": str(self._settings.credentials),
        }  # fmt: skip
        while len(self._running) < wanted:
            self._running.append(
                await asyncio.create_subprocess_exec(sys.executable, "-m", "monitor.main", env=environment)
            )
        async with asyncio.timeout(_WITHIN):
            while sorted(Counter((await self.holders()).values()).values()) != [_PARTITIONS // wanted] * wanted:
                await asyncio.sleep(_EVERY)

    async def kill_oldest(self) -> datetime:
        """Kill the replica that has run longest, which has the leases that exist only once. Returns the time."""
        process = self._running.pop(0)
        process.send_signal(signal.SIGKILL)
        killed_at = datetime.now(UTC)
        await process.wait()
        return killed_at

    async def stop(self) -> None:
        """Stop all replicas."""
        for process in self._running:
            process.terminate()
        await asyncio.gather(*(process.wait() for process in self._running))

    async def holders(self) -> dict[int, bytes]:
        """The replica that holds each partition."""
        leases = await _all(self.bus, "KV_leases", f"$KV.leases.monitor.watch.{_PARTITIONS}.*")
        return {int(one.subject.rpartition(".")[2]): one.data for one in leases if one.data}


async def _measure_takeover(replicas: Replicas) -> Latency:
    """Measure from the kill to commands that became due after it, in the partitions of the killed replica."""
    took: list[float] = []
    for _ in range(_KILLS):
        await replicas.start(2)
        before = await replicas.holders()
        killed_at = await replicas.kill_oldest()
        sandboxes = _one_in_each()
        await asyncio.gather(*(_publish_loop(replicas.bus, sandbox) for sandbox in sandboxes))
        commanded = await _commanded(replicas.bus, sandboxes)
        after = await replicas.holders()
        taken = [sandboxes[number] for number in range(_PARTITIONS) if before[number] != after[number]]
        took += [(commanded[sandbox] - killed_at).total_seconds() for sandbox in taken]
    return latency_of(took)


def _one_in_each() -> list[str]:
    found: dict[int, str] = {}
    while len(found) < _PARTITIONS:
        name = f"sbx-{next(_names)}"
        found.setdefault(partition_of(_PROJECT, name, _PARTITIONS), name)
    return [found[number] for number in range(_PARTITIONS)]
