"""A herd with workers that publish and a spawner that stores records: everything around the monitor."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from datetime import UTC, datetime
from typing import Any

import pytest
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from message_relay.main import compose as compose_relay
from monitor.main import compose
from sandherd.bus.connection import Bus
from sandherd.contracts.envelope import wrap
from sandherd.contracts.events import EVENTS
from sandherd.contracts.inbox_messages import InboxMessage, Receipt
from sandherd.contracts.states import SandboxState
from sandherd.contracts.subjects import DELIVER, Principal
from sandherd.service.service import Service
from sandherd.stack.broker import Broker
from tests.patience import PATIENCE
from tests.shared_broker import herd

__all__ = ["herd"]

PROJECT = "default"
DEAD_AFTER = 4.0
"""Seconds. Hearts beat ten times a second here: on a busy machine one second without a heartbeat is normal."""
NOT_SOON: dict[str, Any] = {
    "dead_after": 3600,
    "idle_after": 3600,
    "stuck_after": 3600,
    "finished_after": 3600,
    "check_interval": 0.05,
}


class World:
    """Everything around the monitor, the events that it publishes, and the commands that it sends."""

    def __init__(self, herd: Broker, stack: AsyncExitStack) -> None:
        self.herd = herd
        self.stack = stack
        self.changed = asyncio.Event()
        self.published: list[dict[str, Any]] = []
        self.commands: list[dict[str, Any]] = []
        self.received: list[str] = []
        self.client: Bus
        self.spawner: Bus
        self._workers: dict[str, Bus] = {}
        self._subscriptions: list[Subscription] = []
        self._sequence = 0

    async def open(self) -> "World":
        self.client = await self.stack.enter_async_context(self.herd.bus(Principal.CLIENT))
        self.spawner = await self.stack.enter_async_context(self.herd.bus(Principal.SPAWNER))
        for kind in ("monitor", "message", "approval"):
            subject = f"sandherd.v1.event.{PROJECT}.*.{kind}.*"
            self._subscriptions.append(await self.client.client.subscribe(subject, cb=self._on_event))
        await self.client.client.flush()
        taking = asyncio.create_task(self._take_commands())
        self.stack.push_async_callback(self._cancel, taking)
        return self

    async def _cancel(self, task: "asyncio.Task[None]") -> None:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task

    async def _on_event(self, msg: Msg) -> None:
        self.published.append(json.loads(msg.data))
        self.changed.set()

    async def _take_commands(self) -> None:
        """Record the commands to the spawner, which has no further effect.

        A command counts only when the events that were published before it have arrived, too.
        """
        subscription = await self.spawner.js.pull_subscribe_bind(consumer="spawner-commands", stream="COMMANDS")
        try:
            while True:
                with suppress(TimeoutError):
                    messages = await subscription.fetch(10, timeout=1)
                    await self._receive_events()
                    for msg in messages:
                        self.commands.append(json.loads(msg.data))
                        await msg.ack()
                        self.changed.set()
        finally:
            await subscription.unsubscribe()

    async def _receive_events(self) -> None:
        """Return when all events that the broker has by now were received here."""
        await self.client.client.flush()
        while any(subscription.pending_msgs for subscription in self._subscriptions):
            await asyncio.sleep(0)

    def of(self, event_type: str, sandbox: str | None = None) -> list[dict[str, Any]]:
        return [
            event for event in self.published if event["type"] == event_type and sandbox in {None, event["subject"]}
        ]

    def requested(self, sandbox: str) -> list[str]:
        """The reasons with which the spawner was commanded to end a sandbox."""
        return [
            sent_command["data"]["reason"]
            for sent_command in self.commands
            if sent_command["data"].get("sandbox") == sandbox
        ]

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE):
            while not condition():
                self.changed.clear()
                await self.changed.wait()

    async def record(self, sandbox: str, state: SandboxState = SandboxState.RUNNING, **fields: Any) -> str:
        """Write a record as the spawner does: fields at their default are left out."""
        known = {"task": "task-1", "state": state} | fields
        record = {key: value for key, value in known.items() if value not in {None, SandboxState.REQUESTED}}
        payload = json.dumps({"sandbox": sandbox} | record).encode()
        await self.spawner.js.publish(f"$KV.sandboxes.{PROJECT}.{sandbox}", payload)
        return sandbox

    async def by_spawner(self, sandbox: str, event_type: str, **fields: Any) -> None:
        await self._publish(
            self.spawner, sandbox, f"/sandherd/spawner/{sandbox}", event_type, runtime="process", **fields
        )

    async def by_worker(self, sandbox: str, event_type: str, **fields: Any) -> None:
        if sandbox not in self._workers:
            bus = self.herd.bus(Principal.WORKER, project=PROJECT, sandbox=sandbox)
            self._workers[sandbox] = await self.stack.enter_async_context(bus)
        bus_of = self._workers[sandbox]
        await self._publish(bus_of, sandbox, f"/sandherd/sandbox/{sandbox}", event_type, **fields)

    async def _publish(
        self, bus: Bus, sandbox: str, source: str, event_type: str, taskid: str | None = "task-1", **fields: Any
    ) -> None:
        self._sequence += 1
        if event_type in {"agent.started", "agent.heartbeat"}:
            fields["timestamp"] = datetime.now(UTC)
        event = wrap(
            EVENTS[event_type](**fields),
            event_type,
            source=source,
            sequence=self._sequence,
            project=PROJECT,
            subject=sandbox,
            sandboxid=sandbox,
            taskid=taskid,
            time=datetime.now(UTC),
        )
        await bus.publish_event(event)

    async def born(self, sandbox: str) -> str:
        """Create a sandbox that is wanted, runs, and has published an event."""
        await self.record(sandbox)
        await self.by_spawner(sandbox, "sandbox.requested")
        await self.by_worker(sandbox, "agent.started", sdk="command", task="t", task_description_length=1)
        return sandbox

    @asynccontextmanager
    async def beating(self, sandbox: str, **fields: Any) -> AsyncIterator[None]:
        """Publish heartbeats as long as the block runs."""

        async def beat() -> None:
            while True:
                await self.by_worker(sandbox, "agent.heartbeat", **fields)
                await asyncio.sleep(0.1)

        task = asyncio.create_task(beat())
        try:
            yield
        finally:
            await self._cancel(task)

    async def call(self, sandbox: str, key: str, command: str = "ls") -> None:
        """Publish a tool call and its result, always the same."""
        await self.by_worker(sandbox, "agent.tool_use", tool="Bash", tool_use_id=key, input={"command": command})
        await self.by_worker(sandbox, "agent.tool_result", tool_use_id=key, result="nothing")

    async def receive(self, sandbox: str) -> None:
        """Let the worker accept messages from now on."""

        async def on_message(msg: Msg) -> None:
            message = InboxMessage.model_validate_json(msg.data)
            self.received.append(message.content)
            await msg.respond(Receipt(message=message.message, outcome="acknowledged").model_dump_json().encode())

        client = self._workers[sandbox].client
        await client.subscribe(DELIVER.fill(project=PROJECT, sandbox=sandbox), cb=on_message)
        await client.flush()

    def monitor(self, **settings: Any) -> Service:
        return compose(self.herd.settings(Principal.MONITOR, **(NOT_SOON | settings)))

    def relay(self) -> Service:
        return compose_relay(self.herd.settings(Principal.MESSAGE_RELAY))


@pytest.fixture
async def world(herd: Broker) -> AsyncIterator[World]:
    async with AsyncExitStack() as stack:
        yield await World(herd, stack).open()
