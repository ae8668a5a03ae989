"""A herd with a client, the spawner's records and workers that reply: everything around message-relay."""

import asyncio
import json
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import nats.errors
import pytest
from aiohttp import web
from nats.aio.msg import Msg

from message_relay.main import compose
from sandherd.bus.connection import Bus
from sandherd.client import Herd
from sandherd.contracts.commands import AnswerApproval, Command, RequestApproval, SendMessage, WithdrawApproval
from sandherd.contracts.envelope import Envelope, wrap
from sandherd.contracts.events import EventData
from sandherd.contracts.events.sandbox import SandboxResumed, SandboxTerminated
from sandherd.contracts.events.tools import AgentApprovalRequested, AgentApprovalWithdrawn
from sandherd.contracts.inbox_messages import InboxMessage, Receipt
from sandherd.contracts.names import new_name
from sandherd.contracts.states import SandboxState
from sandherd.contracts.subjects import DELIVER, Principal
from sandherd.service.service import Service
from sandherd.stack.broker import Broker
from spawner.main import compose as compose_spawner
from tests.integration.message_relay.webhook_endpoint import Endpoint
from tests.integration.message_relay.webhook_herd import HOST, context_of
from tests.patience import PATIENCE
from tests.shared_broker import herd

__all__ = ["herd"]

PROJECT = "default"
CommandT = TypeVar("CommandT", bound=Command)


class Worker:
    """Replies for one sandbox as a worker does; it receives each message once."""

    def __init__(self, sandbox: str, world: "World") -> None:
        self.sandbox = sandbox
        self.received: list[str] = []
        self.handed: list[str] = []
        self.knocked = 0
        self.dead = False
        self.answers: Callable[[InboxMessage], bytes | None] = self.acknowledge
        self._ids: set[object] = set()
        self._world = world

    async def on_message(self, msg: Msg) -> None:
        if not msg.data:
            self.knocked += 1
            self._world.changed.set()
            if not self.dead:
                await msg.respond(b"")
            return
        message = InboxMessage.model_validate_json(msg.data)
        self.handed.append(message.message)
        identity = message.message_type, message.source or (message.message, message.sent_at)
        if identity not in self._ids:
            self._ids.add(identity)
            self.received.append(message.content)
        answer = self.answers(message)
        if answer is not None:
            await msg.respond(answer)
        self._world.changed.set()

    def acknowledge(self, message: InboxMessage) -> bytes:
        return Receipt(message=message.message, outcome="acknowledged").model_dump_json().encode()

    def refuse(self, message: InboxMessage) -> bytes:
        return Receipt(message=message.message, outcome="rejected", reason="full").model_dump_json().encode()

    def is_gone(self, message: InboxMessage) -> bytes:
        """Reply as a worker that only publishes what an earlier one left unpublished."""
        gone = Receipt(message=message.message, outcome="rejected", reason="the agent is gone", agent_gone=True)
        return gone.model_dump_json().encode()


class World:
    """The surroundings of the relay, and the events that it publishes."""

    def __init__(self, herd: Broker, stack: AsyncExitStack) -> None:
        self.herd = herd
        self.stack = stack
        self.changed = asyncio.Event()
        self.published: dict[str, list[str]] = defaultdict(list)
        self._relayed: set[str] = set()
        """The ids of the events that were received from the relay."""
        self.approvals: dict[str, list[str]] = defaultdict(list)
        self.refused: dict[str, dict[str, Any]] = {}
        """The data of refusals, by the id of the refused command."""
        self.client: Bus
        self.spawner: Bus
        self.reader: Bus

    async def open(self) -> "World":
        self.client = await self.stack.enter_async_context(self.herd.bus(Principal.CLIENT))
        self.spawner = await self.stack.enter_async_context(self.herd.bus(Principal.SPAWNER))
        self.reader = await self.stack.enter_async_context(self.herd.bus(Principal.MONITOR))
        await self.client.client.subscribe(f"sandherd.v1.event.{PROJECT}.>", cb=self._on_event)
        await self.client.client.flush()
        return self

    async def _on_event(self, msg: Msg) -> None:
        event = json.loads(msg.data)
        if "message-relay" in event["source"]:
            self._relayed.add(event["id"])
        if "message_id" in event["data"]:
            self.published[event["data"]["message_id"]].append(event["type"].removeprefix("message."))
        if event["type"] == "message.refused":
            self.refused[event["data"]["command_id"]] = event["data"]
        if event["type"].startswith("approval."):
            self.approvals[event["data"]["approval_id"]].append(event["type"].removeprefix("approval."))
        self.changed.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE):
            while not condition():
                self.changed.clear()
                await self.changed.wait()

    async def restart_broker(self) -> None:
        """Kill the broker, start it again, and wait until events are received: what is published before is lost."""
        await self.herd.kill()
        await self.herd.restart()
        results: list[bool] = []

        async def ask() -> None:
            """Do a round trip, after which the broker knows all subscriptions."""
            with suppress(nats.errors.Error, TimeoutError, OSError):
                await self.client.client.flush(1)
                results.append(True)

        await self.until_after(ask, lambda: bool(results))

    async def until_published(self, message: str, state: str) -> None:
        await self.until(lambda: state in self.published[message])

    async def until_after(self, act: Callable[[], Awaitable[None]], condition: Callable[[], bool]) -> None:
        """Act repeatedly until the condition holds: the relay may not be listening the first time."""
        async with asyncio.timeout(PATIENCE):
            while not condition():
                await act()
                self.changed.clear()
                if not condition():
                    with suppress(TimeoutError):
                        await asyncio.wait_for(self.changed.wait(), 1)

    async def record(self, sandbox: str, state: SandboxState = SandboxState.RUNNING, **fields: Any) -> str:
        """Write a record as the spawner does: fields at their default are left out."""
        known = {"task": "task-1", "state": state} | fields
        record = {key: value for key, value in known.items() if value not in {None, SandboxState.REQUESTED}}
        payload = json.dumps({"sandbox": sandbox, "more": [1]} | record).encode()
        await self.spawner.js.publish(f"$KV.sandboxes.{PROJECT}.{sandbox}", payload)
        return sandbox

    async def attempt(self, number: int, **fields: Any) -> str:
        """Begin an attempt of task-1 in sbx-<number> as the spawner does: the task's record, then the sandbox's."""
        before = {"sandbox": f"sbx-{number - 1}", "attempt": number - 1} if number > 1 else None
        known = {"state": "running", "attempt": number, "sandbox": f"sbx-{number}", "previous": before}
        await self.record_task(**known | fields)
        return await self.record(f"sbx-{number}", attempt=number)

    async def lose(self, number: int) -> None:
        """Record the loss of an attempt's worker: the task waits for its next attempt, and the sandbox has ended."""
        before = {"sandbox": f"sbx-{number}", "attempt": number}
        await self.record_task(state="pending", attempt=number + 1, previous=before)
        await self.end(f"sbx-{number}", attempt=number, reason="worker_lost")

    async def record_task(self, **fields: Any) -> None:
        """Write the task's record as the spawner does."""
        record = {"task": "task-1", "life": "l1", "spec": {}} | fields
        payload = json.dumps({key: value for key, value in record.items() if value is not None}).encode()
        await self.spawner.js.publish(f"$KV.tasks.{PROJECT}.task-1", payload)

    async def end(self, sandbox: str, **fields: Any) -> None:
        """End a sandbox as the spawner does: first the record, then the event."""
        await self.record(sandbox, SandboxState.TERMINATED, **fields)
        await self.by_spawner(sandbox, SandboxTerminated(runtime="process", reason="test"))

    async def go_on(self, sandbox: str) -> None:
        """Resume a paused sandbox as the spawner does."""
        await self.record(sandbox)
        await self.by_spawner(sandbox, SandboxResumed(runtime="process"))

    async def by_spawner(self, sandbox: str, data: EventData) -> None:
        event = wrap(
            data,
            data.type,
            source=f"/sandherd/spawner/{sandbox}",
            sequence=1,
            project=PROJECT,
            subject=sandbox,
            time=datetime.now(UTC),
        )
        await self.spawner.publish_event(event)

    def command(
        self, sandbox: str, content: str = "hello", *, message: str | None = None, expires: int = 600, **more: Any
    ) -> Envelope[SendMessage]:
        name = message or new_name("msg")
        data = SendMessage(message=name, sandbox=sandbox, content=content, expires_seconds=expires, **more)
        return _command(data, sandbox)

    def answer(
        self, sandbox: str, approval: str, granted: bool, *, message: str | None = None, **more: Any
    ) -> Envelope[AnswerApproval]:
        name = message or new_name("msg")
        data = AnswerApproval(message=name, sandbox=sandbox, approval_id=approval, granted=granted, **more)
        return _command(data, sandbox)

    async def decide(self, sandbox: str, approval: str, granted: bool = True, **more: Any) -> str:
        """Send a user's decision. Returns the name of the message that delivers it."""
        command = self.answer(sandbox, approval, granted, **more)
        await self.client.publish_command(command)
        return command.data.message

    async def by_monitor(self, data: RequestApproval | WithdrawApproval) -> None:
        """Send the monitor's command about an approval of its own."""
        await self.reader.publish_command(_command(data, data.sandbox))

    async def ask(self, sandbox: str, approval: str, **more: Any) -> Envelope[Any]:
        """Request an approval as the sandbox's worker, over a new connection."""
        requested = {"tool": "Bash", "input": {"command": "rm"}} | more
        return await self.by_worker(sandbox, AgentApprovalRequested(approval_id=approval, **requested))

    async def withdraw(self, sandbox: str, approval: str, reason: str = "its turn is over") -> Envelope[Any]:
        """Withdraw an approval, for which the agent does not wait any more."""
        return await self.by_worker(sandbox, AgentApprovalWithdrawn(approval_id=approval, reason=reason))

    async def by_worker(self, sandbox: str, data: EventData) -> Envelope[Any]:
        event = wrap(
            data,
            data.type,
            source=f"/sandherd/sandbox/{sandbox}",
            sequence=1,
            project=PROJECT,
            subject=sandbox,
            sandboxid=sandbox,
            time=datetime.now(UTC),
        )
        async with self.herd.bus(Principal.WORKER, project=PROJECT, sandbox=sandbox) as bus:
            await bus.publish_event(event)
        return event

    async def send(self, sandbox: str, content: str = "hello", **more: Any) -> str:
        command = self.command(sandbox, content, **more)
        await self.client.publish_command(command)
        return command.data.message

    def new_worker(self, sandbox: str) -> Worker:
        return Worker(sandbox, self)

    @asynccontextmanager
    async def worker(self, sandbox: str, worker: Worker | None = None) -> AsyncIterator[Worker]:
        """A worker with its own credential, until the block ends; the same worker may return."""
        worker = worker or Worker(sandbox, self)
        async with self.herd.bus(Principal.WORKER, project=PROJECT, sandbox=sandbox) as bus:
            await bus.client.subscribe(DELIVER.fill(project=PROJECT, sandbox=sandbox), cb=worker.on_message)
            await bus.client.flush()
            yield worker

    async def speak(self, sandbox: str) -> None:
        """Publish an event as the sandbox's worker, over a new connection."""
        async with self.herd.bus(Principal.WORKER, project=PROJECT, sandbox=sandbox) as bus:
            await bus.publish(f"sandherd.v1.event.{PROJECT}.{sandbox}.agent.waiting", b"{}", msg_id=new_name("x"))

    async def stored(self, key: str = "message_id") -> dict[str, list[dict[str, Any]]]:
        """All stored events that the relay published about messages, by message and in their own numbering.

        With `approval_id`, those about approvals. They include all that were received by now: a stream stores a moment
        later.
        """
        found = defaultdict[str, list[dict[str, Any]]](list)
        events = await self.relayed()
        for event in sorted(events, key=lambda event: int(event["sequence"])):
            if key in event["data"]:
                found[event["data"][key]].append(event)
        return dict(found)

    async def relayed(self) -> list[dict[str, Any]]:
        """All stored events that the relay published, including those received by now."""
        results = set(self._relayed)
        events = await self._relayed_in_stream()
        async with asyncio.timeout(PATIENCE):
            while not results <= {event["id"] for event in events}:
                await asyncio.sleep(0.02)
                events = await self._relayed_in_stream()
        return events

    def check_sequences(self, events: list[dict[str, Any]]) -> None:
        """Check that each source counts from 1, without a gap and without a duplicate."""
        counted = defaultdict[str, list[int]](list)
        for event in events:
            counted[event["source"]].append(event["sequence"])
        wrong = {
            source: numbers for source, numbers in counted.items() if sorted(numbers) != [*range(1, len(numbers) + 1)]
        }
        assert not wrong

    async def _relayed_in_stream(self) -> list[dict[str, Any]]:
        state = (await self.reader.js.stream_info("EVENTS")).state
        numbers = range(state.first_seq, state.last_seq + 1)
        stored = [await self.reader.js.get_msg("EVENTS", number) for number in numbers]
        events = [json.loads(message.data or b"{}") for message in stored]
        return [event for event in events if "message-relay" in event.get("source", "")]

    async def until_inbox_has(self, count: int) -> None:
        """Wait until INBOX has this number of messages: a handled message is removed after its event is published."""
        async with asyncio.timeout(PATIENCE):
            while await self.inbox_size() != count:
                await asyncio.sleep(0.02)

    async def dead(self, count: int) -> int:
        """Wait for this number of dead letters; returns their number. Other messages are handled in the meantime."""
        async with self.herd.bus(Principal.MESSAGE_RELAY) as bus, asyncio.timeout(PATIENCE):
            while (found := int((await bus.js.stream_info("DEAD")).state.messages)) < count:
                await asyncio.sleep(0.02)
        return found

    async def inbox_size(self) -> int:
        async with self.herd.bus(Principal.MESSAGE_RELAY) as bus:
            return int((await bus.js.stream_info("INBOX")).state.messages)

    def relay(self, **settings: Any) -> Service:
        return compose(self.herd.settings(Principal.MESSAGE_RELAY, **settings))


def _command(data: CommandT, sandbox: str) -> Envelope[CommandT]:
    return wrap(
        data,
        data.type,
        source="/sandherd/client/test",
        sequence=1,
        project=PROJECT,
        subject=sandbox,
        time=datetime.now(UTC),
    )


@pytest.fixture
async def world(herd: Broker) -> AsyncIterator[World]:
    async with AsyncExitStack() as stack:
        yield await World(herd, stack).open()


@pytest.fixture
async def endpoint() -> AsyncIterator[Endpoint]:
    found = Endpoint()
    app = web.Application()
    app.add_routes([web.post("/{name}", found.receive)])
    runner = web.AppRunner(app, shutdown_timeout=1)
    await runner.setup()
    await web.TCPSite(runner, HOST, 0).start()
    found.url = f"http://{HOST}:{runner.addresses[0][1]}"
    try:
        yield found
    finally:
        found.held.set()
        await runner.cleanup()


@pytest.fixture
async def spawner(herd: Broker, tmp_path: Path) -> AsyncIterator[Service]:
    settings = herd.settings(Principal.SPAWNER, home=tmp_path / "home", check_interval=0.2, isolation="none")
    async with compose_spawner(settings).running() as service:
        yield service


@pytest.fixture
async def user(herd: Broker, spawner: Service) -> AsyncIterator[Herd]:
    async with Herd.connect(context_of(herd)) as connected:
        yield connected
