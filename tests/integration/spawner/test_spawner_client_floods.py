"""Clients flood the broker with a project's real credential while another project runs tasks."""

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any

import pytest

from sandherd.bus.consumers.held_messages import HeldMessage, HeldMessages
from sandherd.bus.stream_configs import stream_config
from sandherd.contracts.streams import BY_STREAM
from sandherd.contracts.subjects import Principal, command_subject
from sandherd.service.service import Service
from sandherd.stack.broker import Broker
from tests.patience import PATIENCE
from tests.polling import eventually

pytestmark = pytest.mark.own_broker

Spawn = Callable[..., Service]
MAD = "mad"
"""The project of the client that floods."""
MIB = 1024 * 1024
SUBMIT, SEND = command_subject("spawner.submit_task", MAD), command_subject("message-relay.send_message", MAD)


@asynccontextmanager
async def flooding(herd: Broker, subject: str, body: str, *, again: bool) -> AsyncIterator[asyncio.subprocess.Process]:
    """A client of the project that floods a subject; it is ended at the end of the block."""
    path = herd.credentials(Principal.CLIENT, project=MAD)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.integration.spawner.flooding_client"),
        *(herd.url, str(path), subject, "again" if again else "once", body),
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.communicate()


@pytest.mark.parametrize("body", ["one-byte", "json"])
async def test_flooding_client_is_disconnected_and_other_projects_continue(
    herd: Broker, spawner: Spawn, person: Any, body: str
) -> None:
    """A client that floods is disconnected, its credential is not revoked, and p1's client is unaffected."""
    async with spawner(client_messages=200).running():
        async with flooding(herd, SUBMIT, body, again=False) as client:
            task = await person.submit(["true"])
            assert (await person.ended(task)).state == "completed"
            out, _ = await asyncio.wait_for(client.communicate(), PATIENCE)
            assert out == b"closed\n"
        assert person.bus.reconnects == 0
        async with herd.bus(Principal.CLIENT, project=MAD, connect_timeout=PATIENCE) as bus:
            await bus.flush(timeout=PATIENCE)


async def test_client_that_fills_the_command_stream_is_disconnected(herd: Broker, spawner: Spawn, person: Any) -> None:
    """Large commands for a stopped service stay stored; their client is disconnected, and p1's stays connected."""
    async with herd.provisioner() as jetstream:
        await jetstream.update_stream(stream_config(replace(BY_STREAM["COMMANDS"], max_bytes=64 * MIB)))
    async with (
        flooding(herd, SEND, "large", again=False) as client,
        spawner(project_commands_mb=16, client_messages=1_000_000).running(),
    ):
        out, _ = await asyncio.wait_for(client.communicate(), PATIENCE)
        assert out == b"closed\n"
        stored = await _waiting(herd)
        assert stored > 16 * MIB
        task = await person.submit(["true"])
        assert (await person.ended(task)).state == "completed"
        assert await _waiting(herd) >= stored
    assert person.bus.reconnects == 0


async def _waiting(herd: Broker) -> int:
    """The bytes of the commands that wait."""
    async with herd.provisioner() as jetstream:
        return (await jetstream.stream_info("COMMANDS")).state.bytes


@pytest.mark.parametrize("kind", ["commands", "events"])
async def test_message_of_another_project_precedes_a_backlog(
    herd: Broker, spawner: Spawn, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Behind 5,000 one-byte messages of one project, another project's message is among the first to be processed."""
    count, handled, pulled = 5000, list[str](), asyncio.Event()
    handle_one = HeldMessages.handle_one

    async def gated(held: HeldMessages, item: HeldMessage, handle: Any) -> None:
        await pulled.wait()
        handled.append(item.lane.project)
        await handle_one(held, item, handle)

    monkeypatch.setattr(HeldMessages, "handle_one", gated)
    stream, consumer = ("COMMANDS", "spawner-commands") if kind == "commands" else ("EVENTS", "spawner-agents")
    await publish_junk(herd, kind, MAD, count)
    await publish_junk(herd, kind, "p1", 1)
    async with spawner(client_messages=10 * count).running(), herd.provisioner() as jetstream:

        async def is_pulled() -> bool:
            return not (await jetstream.consumer_info(stream, consumer)).num_pending

        await eventually(is_pulled)
        pulled.set()
        await eventually(lambda: len(handled) > count)
    # Sixteen are processed while the others are being pulled.
    assert handled.index("p1") < 100, handled.index("p1")


async def publish_junk(herd: Broker, kind: str, project: str, count: int) -> None:
    """Publish one-byte messages on the subjects of commands, or of ends of agents, with the project's credential."""
    principal = Principal.CLIENT if kind == "commands" else Principal.WORKER
    names = {} if kind == "commands" else {"sandbox": f"sbx-{project}"}
    subject = (
        command_subject("spawner.submit_task", project)
        if kind == "commands"
        else f"sandherd.v1.event.{project}.sbx-{project}.agent.completed"
    )
    async with herd.bus(principal, project=project, **names) as bus:
        for _ in range(count):
            await bus.client.publish(subject, b"1")
        await bus.flush(timeout=PATIENCE)
        # The broker has received them; all are stored once a later one is acknowledged.
        await bus.publish(subject, b"1", msg_id=f"last-{project}", timeout=PATIENCE)
