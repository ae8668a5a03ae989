"""The environment of all histories: one broker, one loop, and a tally of what has happened in them."""

import asyncio
from collections import Counter
from collections.abc import Coroutine
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from pathlib import Path
from typing import Any, Final

import uvloop
from prometheus_client import CollectorRegistry

from sandherd.bus.connection import Bus, ConnectionIdentity
from sandherd.bus.identity import Registrar, SpawnerKeys, write_secret
from sandherd.bus.identity.minter import PROVISIONER
from sandherd.contracts.subjects import Principal
from sandherd.stack.broker import Broker
from sandherd.telemetry.meters import Meters
from tests.integration.spawner.scripted.gate import Died
from tests.integration.spawner.scripted.world import Stage, World

ENOUGH: Final = 100
"""The number of histories after which each of `EXPECTED` must have happened in one of them."""
BUCKETS: Final = ("tasks", "sandboxes", "pool", "projects")
STREAMS: Final = ("EVENTS", *(f"KV_{name}" for name in BUCKETS))
EXPECTED: Final = {
    "crash", "slow", "stop", "completed", "failed", "cancelled", "attempts after the first", "without a task", "warm",
    "task.retry_scheduled", "task.rejected", "task.timed_out", "sandbox.paused", "sandbox.refused", "sandbox.failed",
    "sandbox.orphan_found", "sandbox.orphan_removed",
}  # fmt: skip
"""What must have happened in `ENOUGH` histories."""
RARE: Final = {"sandbox.resumed", "sandbox.extended"}
MANY: Final = 1000
"""The number of histories after which each of `RARE` must have happened, too."""


class Theatre:
    """One broker and one loop for all histories; the broker is emptied before each."""

    def __init__(self, directory: Path) -> None:
        self._runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
        self._stack = AsyncExitStack()
        self._meters = Meters(CollectorRegistry())
        self.tally: Counter[str] = Counter()
        self.run(self._open(directory))
        self._runner.get_loop().set_exception_handler(self._on_exception)

    async def _open(self, directory: Path) -> None:
        broker = Broker(directory)
        await broker.start()
        self._stack.push_async_callback(broker.kill)
        self._provisioner = await self._stack.enter_async_context(_provisioner(broker))
        self._keys = SpawnerKeys.read(broker.spawner_identity)
        self._bus = await self._stack.enter_async_context(broker.bus(Principal.SPAWNER))

    def _on_exception(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if not isinstance(context.get("exception"), Died):
            loop.default_exception_handler(context)

    async def empty(self) -> World:
        """Empty the broker; returns a new world."""
        for stream in STREAMS:
            await self._provisioner.js.purge_stream(stream)
        states = {name: (await self._provisioner.js.stream_info(f"KV_{name}")).state for name in BUCKETS}
        return World(
            Stage(self._bus, self._keys, {name: state.last_seq for name, state in states.items()}, self._meters)
        )

    def count(self, world: World) -> None:
        """Count what has happened in a world that is over."""
        tally = self.tally
        tally["histories"] += 1
        tally.update(met.partition(" ")[0] for instance in world.gone + world.instances for met in instance.gate.met)
        tally.update(str(task.state) for task in world.journal.tasks.values())
        tally["attempts after the first"] += sum(task.attempt - 1 for task in world.journal.tasks.values())
        tally["sandboxes"] += len(world.journal.sandboxes)
        tally["warm"] += sum(bool(record.unit) for record in world.journal.sandboxes.values())
        tally["without a task"] += sum(not record.task for record in world.journal.sandboxes.values())
        tally.update(event["type"] for events in world.journal.published.values() for event in events.values())

    def check_that_all_happened(self) -> None:
        """Check that everything that histories are to prove has happened in some of them, if there were enough."""
        print(dict(sorted(self.tally.items())))
        if self.tally["histories"] >= ENOUGH:
            expected = EXPECTED | RARE if self.tally["histories"] >= MANY else EXPECTED
            missing = sorted(name for name in expected if not self.tally[name])
            assert not missing, f"none of {self.tally['histories']} histories has seen {missing}"

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self._runner.run(work)

    def close(self) -> None:
        self.run(self._stack.aclose())
        self._runner.close()


def _provisioner(broker: Broker) -> AbstractAsyncContextManager[Bus]:
    """A connection with all permissions on streams."""
    path = broker.home / "creds" / "histories.creds"
    write_secret(path, Registrar(broker.identity).mint_stream_admin(life=86_400))
    return Bus.open(broker.url, name="histories", identity=ConnectionIdentity.file(path), inbox=f"_INBOX_{PROVISIONER}")
