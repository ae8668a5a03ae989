"""A backup of one nats-server, restored on three existing ones that have no spare space."""

import asyncio
import shutil
from pathlib import Path
from typing import Any

from sandherd.bus.consumers.pull import Puller
from sandherd.contracts.streams import CONSUMERS
from sandherd.contracts.subjects import Principal, event_subject
from sandherd.stack.broker import Broker
from tests.integration.operating.herds import answer, sandherd
from tests.patience import PATIENCE

P = Principal
PUBLISHED, HANDLED = 20, 12


async def use(herd: Broker) -> None:
    """Store some events, of which event-ingest has handled the first, and a task."""
    async with herd.bus(P.WORKER, project="p1", sandbox="sbx-1") as worker:
        for number in range(PUBLISHED):
            await worker.publish(event_subject("p1", "sbx-1", "agent.completed"), b"{}", msg_id=f"{number}")
    async with herd.bus(P.SPAWNER) as spawner:
        await spawner.js.publish("$KV.tasks.p1.task-1", b"{}")
    async with herd.bus(P.EVENT_INGEST) as ingest:
        puller = Puller(ingest, "EVENTS", "event-ingest", HANDLED)
        await puller.bind()
        for _ in range(HANDLED):
            (message,) = await puller.next_batch(1)
            await message.ack_sync()
        await puller.unbind()


async def stored(herd: Broker) -> dict[str, Any]:
    """The contents of the streams, and the position of each durable consumer."""
    found: dict[str, Any] = {}
    async with herd.provisioner() as jetstream:
        for info in await jetstream.streams_info():
            found[str(info.config.name)] = info.state.messages, info.state.last_seq
        for row in CONSUMERS:
            consumer = await jetstream.consumer_info(row.stream, row.name)
            floor = consumer.ack_floor.stream_seq if consumer.ack_floor else 0
            found[row.name] = floor, (consumer.num_pending or 0) + (consumer.num_ack_pending or 0)
    return found


async def settled(herd: Broker, expected: dict[str, Any]) -> dict[str, Any]:
    """The state once it is as expected, or after a long time: a new leader counts pending messages a moment later."""
    deadline = asyncio.get_running_loop().time() + PATIENCE
    while (found := await stored(herd)) != expected and asyncio.get_running_loop().time() < deadline:
        await asyncio.sleep(0.1)
    return found


async def test_backup_is_restored_on_three_servers(herd: Broker, own_directory: Path) -> None:
    """Each server has every consumer at its position; a second restore changes nothing."""
    folder = own_directory / "b"
    await use(herd)
    before = await stored(herd)
    assert before["event-ingest"] == (HANDLED, PUBLISHED - HANDLED)
    saved = await asyncio.to_thread(sandherd, herd, "backup", str(folder), "--identity", str(herd.home / "identity"))
    assert saved.returncode == 0, saved.stderr
    shutil.copytree(herd.home / "identity", own_directory / "three/identity")
    async with Broker(own_directory / "three", size=3) as three:
        words = "restore", str(folder), "--replicas", "3", "--identity", str(three.home / "identity"), "-o", "json"
        first, again = [await asyncio.to_thread(sandherd, three, *words) for _ in range(2)]
        assert (first.returncode, again.returncode) == (0, 0), first.stderr + again.stderr
        states = {row["stream"]: row["state"] for row in answer(first)}
        assert (states["EVENTS"], states["COMMANDS"]) == (f"{PUBLISHED} messages", "as it was")
        assert {row["state"] for row in answer(again)} == {"as it was"}
        assert await settled(three, before) == before
        async with three.provisioner() as jetstream:
            assert {info.config.num_replicas for info in await jetstream.streams_info()} == {3}
