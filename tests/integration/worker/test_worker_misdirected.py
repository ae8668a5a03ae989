"""Acknowledgements that another project's sandbox directs at a worker: none is processed, and few are logged."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from nats.aio.msg import Msg

from sandherd.bus.connection import Bus
from sandherd.contracts.inbox_messages import InboxMessage
from sandherd.contracts.subjects import BY_NAME, DELIVER, MessageKind, Principal
from sandherd.stack.broker import Broker
from tests.integration.worker.conftest import PROJECT
from tests.patience import PATIENCE

OTHER, MANY, AT_ONCE = "alpha", 5000, 500
SUBJECT = f"sandherd.v1.event.{OTHER}.sbx-a.agent.message"
REQUESTS: Final = [
    row for row in BY_NAME.values() if row.kind is MessageKind.REQUEST and Principal.WORKER in row.consumers
]
Sandbox = Any


def targets(sandbox: str) -> list[str]:
    """The subjects on which the worker of this sandbox receives, and others on which it might."""
    received = [row.fill(project=PROJECT, sandbox=sandbox) for row in (DELIVER, *REQUESTS)]
    return [*received, f"sandherd.v1.inbox.{PROJECT}.{sandbox}", f"_INBOX_{sandbox}.x", f"_INBOX_{sandbox}.x.y"]


async def direct(attacker: Bus, subjects: Sequence[str], count: int) -> None:
    """Publish `count` events, each with the next of these reply subjects."""
    for number in range(count):
        await attacker.client.publish(SUBJECT, b"{}", reply=subjects[number % len(subjects)])
        if number % AT_ONCE == 0:
            await attacker.flush(timeout=PATIENCE)
    await attacker.flush(timeout=PATIENCE)


class Witness:
    """A second connection with the worker's credential, which counts messages without a reply subject."""

    def __init__(self) -> None:
        self.misdirected = 0

    async def on_message(self, message: Msg) -> None:
        self.misdirected += not message.reply


@asynccontextmanager
async def witness(herd: Broker, sandbox: Sandbox) -> AsyncIterator[Witness]:
    """A witness of everything that the worker of this sandbox receives."""
    found = Witness()
    async with herd.bus(Principal.WORKER, project=PROJECT, sandbox=sandbox.name) as bus:
        for row in (DELIVER, *REQUESTS):
            await bus.client.subscribe(row.fill(project=PROJECT, sandbox=sandbox.name), cb=found.on_message)
        await bus.flush()
        yield found


def message(sandbox: str, name: str) -> InboxMessage:
    now = datetime.now(UTC)
    return InboxMessage(
        message=name,
        project=PROJECT,
        sandbox=sandbox,
        content="go on",
        message_type="user_message",
        sent_at=now,
        expires_at=now + timedelta(hours=1),
    )


def lines(sandbox: Sandbox, text: str) -> Iterator[str]:
    return (line for line in sandbox.log.read_text().splitlines() if text in line)


async def test_acknowledgements_from_another_project_are_ignored(
    sandbox: Sandbox, herd: Broker, eventually: Any
) -> None:
    """While thousands come on every subject of a worker, commands and messages reach it, and its log stays short."""
    sandbox.task("while read line; do echo got $line; done", linger_seconds=600)
    await sandbox.start()
    await sandbox.event("tool_use")
    before = len(sandbox.log.read_text().splitlines())
    subjects = targets(sandbox.name)
    async with (
        herd.bus(Principal.WORKER, project=OTHER, sandbox="sbx-a") as attacker,
        herd.bus(Principal.MESSAGE_RELAY) as relay,
        witness(herd, sandbox) as seen,
    ):
        flood = asyncio.create_task(direct(attacker, subjects, MANY))
        for number in range(3):
            state = await sandbox.exec("/bin/echo", str(number))
            assert (state.exit_code, state.output[0].data) == (0, f"{number}\n".encode())
            receipt = await sandbox.deliver(relay, message(sandbox.name, f"msg-{number}"))
            assert receipt.outcome == "acknowledged"
        await flood
        expected = sum(number % len(subjects) < 1 + len(REQUESTS) for number in range(MANY))
        await eventually(lambda: seen.misdirected >= expected, "the acknowledgements, delivered")
        # The connection of the worker gets them before this request.
        assert await sandbox.knock(relay) == b""
        assert (await sandbox.exec("/bin/true")).exit_code == 0
    assert seen.misdirected == expected
    grown = sandbox.log.read_text().splitlines()[before:]
    assert len(grown) <= 10, grown[:20]
    assert list(lines(sandbox, "message without reply subject ignored"))
    assert not list(lines(sandbox, "invalid message ignored"))
