"""The documented examples for subscribers, with a subscriber's credential, and a broker that is killed."""

import asyncio
import json
import os
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from event_ingest.main import compose
from sandherd.bus.connection import Bus
from sandherd.bus.errors import BusError, RefusedError
from sandherd.cli.exit_status import run_command
from sandherd.contracts.envelope import Envelope, wrap
from sandherd.contracts.errors import Code
from sandherd.contracts.events.conversation import AgentMessage
from sandherd.contracts.requests import ListSubscriptions, Unsubscribe
from sandherd.contracts.subjects import Principal, event_subject
from sandherd.stack.broker import Broker
from tests.doubles.stream_admin import stream_admin
from tests.examples import node
from tests.npm_packages import EXAMPLE, VALIDATORS
from tests.patience import PATIENCE
from tests.polling import eventually

PYTHON = [sys.executable, str(node.EXAMPLE / "follow.py")]
SANDBOXES = {"p1": "sbx-1", "p2": "sbx-2"}


def event_of(number: int, project: str) -> Envelope[Any]:
    data = AgentMessage(content=f"{project} {number}", content_length=4)
    name, time = SANDBOXES[project], datetime(2026, 11, 20, 12, tzinfo=UTC)
    source = f"/sandherd/sandbox/{name}"
    return wrap(
        data, data.type, source=source, sequence=number, project=project, subject=name, time=time, sandboxid=name
    )


def worker_of(herd: Broker, project: str) -> AbstractAsyncContextManager[Bus]:
    return herd.bus(Principal.WORKER, project=project, sandbox=SANDBOXES[project])


class Reader:
    """A running example, and what it has written."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.lines: list[Any] = []

    async def until(self, ids: Sequence[str]) -> None:
        """Read until all of these lines were written."""
        assert self.process.stdout
        # Once it has begun, this takes less time than the redelivery of unacknowledged events.
        async with asyncio.timeout(25 if self.lines else PATIENCE):
            while not {*ids} <= {line["id"] for line in self.lines}:
                line = await self.process.stdout.readline()
                assert line, await self.errors()
                self.lines.append(json.loads(line))

    async def ends_with(self, reason: str) -> None:
        """Read until it has ended, with an error whose last line has this reason."""
        async with asyncio.timeout(PATIENCE):
            errors = await self.errors()
            assert await self.process.wait() == 1, errors
        assert reason in errors.splitlines()[-1], errors

    async def errors(self) -> str:
        assert self.process.stderr
        return (await self.process.stderr.read()).decode()


async def delete(herd: Broker, name: str) -> None:
    """Delete a subscription of p1, once the services are connected."""

    async def deleted() -> bool:
        try:
            await bus.ask(Unsubscribe(name=name), "p1")
        except RefusedError as error:
            return error.problem.code is Code.NOT_FOUND
        except BusError:
            return False
        return True

    async with herd.bus(Principal.SUBSCRIBER, project="p1") as bus:
        await eventually(deleted, f"{name} is still there")


@asynccontextmanager
async def reading(herd: Broker, command: list[str], credentials: Path, *words: str) -> AsyncIterator[Reader]:
    environ = {**os.environ, "NATS_URL": herd.url, "SANDHERD_CREDENTIALS": str(credentials)}
    process = await asyncio.create_subprocess_exec(
        *command, *words, env=environ, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    try:
        yield Reader(process)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


@pytest.fixture(params=["python", "node"])
def command(request: pytest.FixtureRequest) -> list[str]:
    return PYTHON if request.param == "python" else node.program()


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


async def test_example_follows_its_project_over_a_broker_kill(
    command: list[str], ingest: Broker, credentials: Path
) -> None:
    """The example writes every event of its project, none of another's, and continues by itself."""
    async with (
        worker_of(ingest, "p1") as worker,
        worker_of(ingest, "p2") as stranger,
        reading(ingest, command, credentials, "p1", "copy") as reader,
    ):
        own = [event_of(number, "p1") for number in range(1, 9)]
        ids = [str(event.id) for event in own]
        for number, event in enumerate(own[:4], 1):
            await worker.publish_event(event)
            await stranger.publish_event(event_of(number, "p2"))
        await reader.until(ids[:4])
        await ingest.kill()
        await ingest.restart()
        for event in own[4:]:
            await worker.publish_event(event)
        await reader.until(ids)
    assert {line["project"] for line in reader.lines} == {"p1"}
    assert Counter(line["id"] for line in reader.lines).keys() == {*ids}
    # Only events whose acknowledgement was not confirmed when the broker ended may have come twice.
    assert all(times == 1 for event, times in Counter(line["id"] for line in reader.lines).items() if event in ids[4:])


async def test_example_resumes_at_its_position(command: list[str], ingest: Broker, credentials: Path) -> None:
    """Stopped after some events and restarted, it writes only later ones."""
    own = [event_of(number, "p1") for number in range(1, 7)]
    ids = [str(event.id) for event in own]
    async with worker_of(ingest, "p1") as worker:
        for event in own[:5]:
            await worker.publish_event(event)
        async with reading(ingest, command, credentials, "p1", "copy", "2") as reader:
            await reader.until(ids[:2])
            assert await reader.process.wait() == 0, await reader.errors()
        await worker.publish_event(own[5])
        async with reading(ingest, command, credentials, "p1", "copy", "4") as again:
            await again.until(ids[2:])
            assert await again.process.wait() == 0, await again.errors()
    assert [line["id"] for line in reader.lines] == ids[:2]
    assert sorted(line["id"] for line in again.lines) == sorted(ids[2:])


async def test_example_skips_invalid_events(command: list[str], ingest: Broker, credentials: Path) -> None:
    """Arbitrary bytes and another's event are not written, but acknowledged, and block no other event."""
    place = event_subject("p1", SANDBOXES["p1"], "agent.message")
    forged = json.loads(event_of(1, "p1").to_json()) | {"type": "task.completed", "subject": "task-1"}
    event = event_of(1, "p1")
    async with worker_of(ingest, "p1") as worker, reading(ingest, command, credentials, "p1", "copy", "1") as reader:
        for number, document in enumerate((b"\xff no event", b"{}", json.dumps(forged).encode())):
            await worker.publish(place, document, msg_id=f"none-{number}")
        await worker.publish_event(event)
        await reader.until([str(event.id)])
        assert await reader.process.wait() == 0, await reader.errors()
        assert [line["id"] for line in reader.lines] == [str(event.id)]
        async with ingest.bus(Principal.SUBSCRIBER, project="p1") as bus:
            (left,) = (await bus.ask(ListSubscriptions(), "p1")).subscriptions
            assert (left.waiting, left.unacknowledged) == (0, 0)


async def test_example_with_a_foreign_credential_fails(command: list[str], ingest: Broker, credentials: Path) -> None:
    """With a credential of another project it ends with an error; it does not wait for ever."""
    async with reading(ingest, command, credentials, "p2", "copy") as reader, asyncio.timeout(PATIENCE):
        assert await reader.process.wait() != 0
        assert "sandherd.v1.request.event-ingest.subscribe.p2" in (await reader.errors()).lower()


@pytest.mark.parametrize("count", [(), ("9",)], ids=["all", "count"])
async def test_example_ends_with_its_subscription(
    command: list[str], count: tuple[str, ...], ingest: Broker, credentials: Path
) -> None:
    """When its subscription is deleted, the example ends with an error that names it; it does not wait for ever."""
    event = event_of(1, "p1")
    async with worker_of(ingest, "p1") as worker, reading(ingest, command, credentials, "p1", "copy", *count) as reader:
        await worker.publish_event(event)
        await reader.until([str(event.id)])
        await delete(ingest, "copy")
        await reader.ends_with("subscription copy")


async def test_example_ends_if_its_subscription_was_deleted_in_an_outage(
    command: list[str], ingest: Broker, credentials: Path
) -> None:
    """It ends, too, if it is disconnected while its subscription is deleted, so that no status reports it."""
    event = event_of(1, "p1")
    async with worker_of(ingest, "p1") as worker, reading(ingest, command, credentials, "p1", "copy") as reader:
        await worker.publish_event(event)
        await reader.until([str(event.id)])
        reader.process.send_signal(signal.SIGSTOP)  # its connection is that of the broker before its restart
        await ingest.kill()
        await ingest.restart()
        await delete(ingest, "copy")
        reader.process.send_signal(signal.SIGCONT)
        await reader.ends_with("subscription copy")


@pytest.mark.parametrize("folder", [EXAMPLE, VALIDATORS], ids=lambda folder: folder.name)
def test_lock_names_no_registry(folder: Path) -> None:
    """The packages are locked by digest; the registry is the installer's choice."""
    lock = json.loads((folder / "package-lock.json").read_text(encoding="utf-8"))
    parts = {name: part for name, part in lock["packages"].items() if name}
    assert len(parts) > 2
    assert all("resolved" not in part and part["integrity"].startswith("sha512-") for part in parts.values())
