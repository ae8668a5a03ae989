"""The example for Node.js that joins history and live events, and computes states and what a task waits for."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from event_ingest.main import compose
from sandherd.bus.connection import Bus
from sandherd.cli.exit_status import run_command
from sandherd.contracts.envelope import wrap
from sandherd.contracts.events import EventData
from sandherd.contracts.events.message import ApprovalGranted, ApprovalRequested
from sandherd.contracts.events.task import TaskAssigned, TaskCompleted, TaskRunning, TaskSubmitted
from sandherd.contracts.requests import ListEvents
from sandherd.contracts.subjects import Principal
from sandherd.stack.broker import Broker
from tests.doubles.stream_admin import stream_admin
from tests.examples import node
from tests.examples.test_examples_subscribe import reading
from tests.patience import PATIENCE
from tests.polling import eventually

TASK, SANDBOX = "task-1", "sbx-1"
OF_TASK = f"/sandherd/spawner/{TASK}"
NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)


async def publish(bus: Bus, data: EventData, source: str, sequence: int) -> None:
    subject = SANDBOX if data.type.startswith("approval.") else TASK
    event = wrap(data, data.type, source=source, sequence=sequence, project="p1", subject=subject, time=NOW)
    await bus.publish_event(event)


def requested(number: int) -> tuple[ApprovalRequested, str, int]:
    return ApprovalRequested(approval_id=f"appr-{number}", tool="Bash"), f"/sandherd/message-relay/{number}", 1


def granted(number: int) -> tuple[ApprovalGranted, str, int]:
    return ApprovalGranted(approval_id=f"appr-{number}"), f"/sandherd/message-relay/{number}", 2


@pytest.fixture
async def ingest(herd: Broker, postgres: str) -> AsyncIterator[Broker]:
    """A broker with event-ingest, and the service that creates its consumers."""
    async with stream_admin(herd), compose(herd.settings(Principal.EVENT_INGEST, database_url=postgres)).running():
        yield herd


@pytest.fixture
def credentials(herd: Broker, tmp_path: Path) -> Path:
    """The credential of a subscriber of project p1, created as an operator does."""
    path = tmp_path / "reader.creds"
    words = ["credentials", "create", "--role", "subscriber", "--project", "p1", "--file", str(path)]
    assert run_command(["--home", str(herd.home), *words]) == 0
    return path


async def begin(spawner: Bus, relay: Bus) -> None:
    """Publish the events of a running task that waits for two approvals."""
    await publish(spawner, TaskSubmitted(task="hello", harness="command", runtime="process"), OF_TASK, 1)
    await publish(spawner, TaskAssigned(sandbox=SANDBOX), OF_TASK, 2)
    await publish(spawner, TaskRunning(sandbox=SANDBOX), OF_TASK, 3)
    for number in (1, 2):
        await publish(relay, *requested(number))


async def stored(herd: Broker, count: int) -> None:
    """Wait until the history has this number of events."""

    async def are() -> Any:
        return len((await bus.ask(ListEvents(), "p1", timeout=PATIENCE)).events) == count

    async with herd.bus(Principal.SUBSCRIBER, project="p1") as bus:
        await eventually(are)


async def test_example_joins_history_and_live(ingest: Broker, credentials: Path) -> None:
    """It writes each state once, in its source's order, whether the event is in the history, in the stream, or in both.

    An approval that is decided before its request is received is no reason to wait.
    """
    program = [*node.program()[:-1], str(Path(node.program()[-1]).with_name("join.mjs"))]
    async with ingest.bus(Principal.SPAWNER) as spawner, ingest.bus(Principal.MESSAGE_RELAY) as relay:
        await begin(spawner, relay)
        await stored(ingest, 5)
        async with reading(ingest, program, credentials, "p1", "joined", TASK) as reader, asyncio.timeout(PATIENCE):
            assert reader.process.stdout
            lines = [await reader.process.stdout.readline()]
            await publish(relay, *granted(1))
            lines.append(await reader.process.stdout.readline())
            await publish(relay, *granted(3))
            await publish(relay, *requested(3))
            await publish(relay, *granted(2))
            await publish(spawner, TaskCompleted(sandbox=SANDBOX), OF_TASK, 4)
            rest = await reader.process.stdout.read()
            assert await reader.process.wait() == 0, await reader.errors()
    assert [line.decode().strip() for line in [*lines, *rest.splitlines()]] == [
        f"{TASK} running, waits for approval appr-1 of Bash, and 1 more",
        f"{TASK} running, waits for approval appr-2 of Bash",
        f"{TASK} running",
        f"{TASK} completed",
    ]
