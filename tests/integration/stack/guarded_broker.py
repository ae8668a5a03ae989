"""A broker that is restarted and guarded as the supervisor does."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from sandherd.bus.connection import Bus, BusError
from sandherd.contracts.subjects import Principal
from sandherd.stack.broker import Broker
from sandherd.stack.process_monitor import ProcessMonitor, StackPart
from sandherd.stack.store_guard import StoreGuard, guarded_servers
from tests.patience import PATIENCE

MIB = 1024 * 1024
SUBJECT = "sandherd.v1.event.p1.task-1.task.submitted"
RESUMED_WITHIN = 30.0
"""Seconds; only `make soak` asserts it, as it depends on the machine."""


@dataclass
class GuardedBroker:
    """A broker that is restarted and guarded as the supervisor does, and its acknowledged messages."""

    broker: Broker
    guard: StoreGuard
    keepers: list[ProcessMonitor]
    bus: Bus
    stored: list[str] = field(default_factory=list)
    tried: int = 0

    @property
    def restarts(self) -> int:
        return sum(keeper.restarts for keeper in self.keepers)

    async def publish(self, size: int = 3000) -> bool:
        self.tried += 1
        msg_id = f"event-{self.tried}"
        try:
            await self.bus.publish(SUBJECT, msg_id.encode().ljust(size), msg_id=msg_id, timeout=1)
        except BusError:
            return False
        self.stored.append(msg_id)
        return True

    async def publish_until_refused(self) -> None:
        """Publish large messages, so that new files are needed, until they are refused."""
        while await self.publish(900_000):
            pass

    async def until(self, condition: Callable[[], bool], seconds: float = PATIENCE) -> None:
        async with asyncio.timeout(seconds):
            while not condition():  # the broker's process can set no event here
                await asyncio.sleep(0.05)

    async def resumed(self) -> float:
        """Seconds until a message is acknowledged again."""
        begun = asyncio.get_running_loop().time()
        async with asyncio.timeout(PATIENCE):
            while not await self.publish():
                await asyncio.sleep(0.05)
        return asyncio.get_running_loop().time() - begun

    async def until_ended(self, pid: int) -> None:
        """Publish until the broker's process has ended."""
        async with asyncio.timeout(PATIENCE):
            while self.broker.child.pid == pid and self.broker.child.alive:
                await self.publish(900_000)

    async def check_nothing_lost(self) -> None:
        async with self.broker.provisioner() as jetstream:
            info = await jetstream.stream_info("EVENTS")
            found = set()
            for sequence in range(info.state.first_seq, info.state.last_seq + 1):
                found.add(((await jetstream.get_msg("EVENTS", seq=sequence)).data or b"").strip().decode())
        assert set(self.stored) <= found


@asynccontextmanager
async def guarded_broker(home: Path, size: int = 1) -> AsyncIterator[GuardedBroker]:
    broker = Broker(home, size=size)
    async with broker, broker.bus(Principal.SPAWNER) as bus:
        parts: list[StackPart] = [broker] if size == 1 else [*broker.servers]
        keepers = [ProcessMonitor(server.name, part) for server, part in zip(broker.servers, parts, strict=True)]
        guard = StoreGuard(guarded_servers(broker.servers))
        tasks = [asyncio.create_task(keeper.run()) for keeper in keepers]
        tasks.append(asyncio.create_task(guard.run(*broker.probed)))
        found = GuardedBroker(broker, guard, keepers, bus)
        try:
            assert await found.publish()
            yield found
        finally:
            for task in tasks:
                task.cancel()
            ended = await asyncio.gather(*tasks, return_exceptions=True)
            assert all(isinstance(end, asyncio.CancelledError) for end in ended), ended
