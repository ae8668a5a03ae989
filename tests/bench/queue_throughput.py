"""How many tasks per second pass through the queue, with a runtime that does nothing.

Ours: commands are received, records written, tasks scheduled, sandboxes led from request to end, and all events
published; the sandboxes of the runtime report at once that they have started and are done. The baseline: the same
commands are published and read by the same consumer, which does nothing with them. Both use one broker and one process,
one after the other.
"""

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from nats.aio.msg import Msg

from sandherd.bus.auth.permissions import Permissions
from sandherd.bus.connection import Bus, ConnectionIdentity
from sandherd.bus.consumers.consumer import DONE, Delivery, Outcome, consume
from sandherd.bus.health import Health
from sandherd.bus.identity import Registrar, write_secret
from sandherd.contracts.commands import CommandHarness, SubmitTask, TaskSpec
from sandherd.contracts.envelope import Envelope, wrap
from sandherd.contracts.events import EventData
from sandherd.contracts.events.agent import AgentCompleted, AgentStarted
from sandherd.contracts.subjects import PREFIX, Principal
from sandherd.settings import Settings
from sandherd.stack.broker import Broker
from spawner.main import compose
from spawner.runtimes.commands import Address, Command, CommandResult, File
from spawner.runtimes.contract import Capabilities, Isolation, ObservedSandbox, RunEnd, Runtime, SandboxPlan, WarmPlan
from tests.bench.recorder import Recorder

PROJECT: Final = "bench"
_AT_ONCE: Final = 100
_MOST: Final = 10_000
_WITHIN: Final = 300.0


class NothingRuntime:
    """A runtime whose sandboxes are done as soon as they are requested. `sink` may publish any agent's events."""

    name = "process"
    capabilities = Capabilities(Isolation.NONE, memory="rlimit", processes="none")

    def __init__(self, sink: Bus) -> None:
        self._sink = sink
        self._there: dict[str, ObservedSandbox] = {}
        self._saying: set[asyncio.Task[None]] = set()

    def on_exit(self, notify: Callable[[str], None]) -> None:
        """Do nothing: no sandbox ends without a request."""

    async def create(self, plan: SandboxPlan) -> None:
        if plan.unit not in self._there:
            self._there[plan.unit] = ObservedSandbox(plan.unit, alive=True, runs=1, project=plan.project)
            saying = asyncio.create_task(self._publish_all(plan))
            self._saying.add(saying)
            saying.add_done_callback(self._saying.discard)

    async def _publish_all(self, plan: SandboxPlan) -> None:
        started = AgentStarted(timestamp=datetime.now(UTC), sdk="command", task="", task_description_length=0)
        for sequence, data in enumerate((started, AgentCompleted(exit_code=0)), 1):
            await self._sink.publish_event(_published(plan, data, sequence))

    async def stop(self, unit: str, grace: float) -> None:
        if unit in self._there:
            self._there[unit] = ObservedSandbox(unit, alive=False, runs=1, end=RunEnd(0))

    async def observe(self, unit: str) -> ObservedSandbox | None:
        return self._there.get(unit)

    async def find_all(self) -> list[ObservedSandbox]:
        return list(self._there.values())

    async def remove(self, unit: str) -> None:
        self._there.pop(unit, None)

    async def release(self, unit: str) -> None: ...

    async def list_quarantined(self) -> list[str]:
        return []

    async def close(self) -> None: ...

    async def prepare(self, plan: WarmPlan) -> None:
        raise NotImplementedError

    async def recover(self, plan: SandboxPlan) -> None:
        raise NotImplementedError

    async def pause(self, unit: str) -> None:
        raise NotImplementedError

    async def resume(self, unit: str) -> None:
        raise NotImplementedError

    async def quarantine(self, unit: str) -> None:
        raise NotImplementedError

    async def unquarantine(self, unit: str) -> None:
        raise NotImplementedError

    async def run(self, unit: str, command: Command) -> CommandResult:
        raise NotImplementedError

    async def write_files(self, unit: str, files: Collection[File]) -> None:
        raise NotImplementedError

    async def read(self, unit: str, path: str, limit: int) -> bytes | None:
        raise NotImplementedError

    async def address(self, unit: str, port: int) -> Address:
        raise NotImplementedError


def _published(plan: SandboxPlan, data: EventData, sequence: int) -> Envelope[Any]:
    return wrap(
        data, data.type, source=f"/sandherd/sandbox/{plan.sandbox}", sequence=sequence, project=plan.project,
        subject=plan.sandbox, time=datetime.now(UTC), sandboxid=plan.sandbox, taskid=plan.task,
    )  # fmt: skip


async def measure(recorder: Recorder) -> None:
    """Measure each run with its own broker."""
    for _ in recorder.each("queue.throughput"):
        recorder.add("queue.throughput", *await measure_queue())


async def measure_queue(count: int = 1000) -> tuple[float, float]:
    """Measure tasks per second through the spawner, and commands per second through the stream alone."""
    count = min(count, _MOST)
    with tempfile.TemporaryDirectory(prefix="queue-") as directory:
        async with Broker(Path(directory)) as broker, broker.bus(Principal.CLIENT, project=PROJECT) as client:
            baseline = await _through_the_stream(broker, client, count)
            async with _sink(broker) as sink:
                ours = await _through_the_spawner(broker, client, sink, count)
    return ours, baseline


async def _through_the_stream(broker: Broker, client: Bus, count: int) -> float:
    left, over = count, asyncio.Event()

    async def take(_delivery: Delivery) -> Outcome:
        nonlocal left
        left -= 1
        if not left:
            over.set()
        return DONE

    async with broker.bus(Principal.SPAWNER) as bus:
        reading = asyncio.create_task(consume(bus, "spawner-commands", take, health=Health(), concurrency=16))
        try:
            return await _rate(client, "stream", count, over)
        finally:
            reading.cancel()
            await asyncio.wait([reading])


async def _through_the_spawner(broker: Broker, client: Bus, sink: Bus, count: int) -> float:
    async def runtimes(_settings: Settings) -> Sequence[Runtime]:
        return [NothingRuntime(sink)]

    settings = broker.settings(Principal.SPAWNER, max_sandboxes=64, home=broker.home / "spawner")
    done, over = set[str](), asyncio.Event()

    async def on_completed(msg: Msg) -> None:
        done.add(msg.subject)
        if len(done) == count:
            over.set()

    await client.client.subscribe(f"{PREFIX}.event.{PROJECT}.*.task.completed", cb=on_completed)
    await client.client.flush()
    async with compose(settings, runtimes=runtimes).running():
        return await _rate(client, "spawner", count, over)


async def _rate(client: Bus, name: str, count: int, over: asyncio.Event) -> float:
    """Publish this number of commands, and wait until they are handled."""
    commands = [_submission(f"{name}-{number}") for number in range(count)]
    begun = time.perf_counter()
    for start in range(0, count, _AT_ONCE):
        await asyncio.gather(*map(client.publish_command, commands[start : start + _AT_ONCE]))
    async with asyncio.timeout(_WITHIN):
        await over.wait()
    return count / (time.perf_counter() - begun)


def _submission(task: str) -> Envelope[Any]:
    spec = TaskSpec(text="nothing", harness=CommandHarness(argv=["true"]))
    return wrap(
        SubmitTask(task=task, spec=spec), SubmitTask.type, source="/sandherd/client/bench", sequence=1,
        project=PROJECT, subject=task, time=datetime.now(UTC),
    )  # fmt: skip


@asynccontextmanager
async def _sink(broker: Broker) -> AsyncIterator[Bus]:
    """A connection that may publish any agent's events: a worker's may publish only those of its own sandbox."""
    allowed = Permissions(publish=("sandherd.v1.event.>",), subscribe=("_INBOX_bench-voice.>",))
    path = broker.home / "creds" / "bench-voice.creds"
    write_secret(path, Registrar(broker.identity).mint_stream_admin(life=3600, allowed=allowed))
    async with Bus.open(
        broker.url, name="bench-voice", identity=ConnectionIdentity.file(path), inbox="_INBOX_bench-voice"
    ) as bus:
        yield bus
