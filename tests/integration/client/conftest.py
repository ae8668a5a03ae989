"""Neighbours for the client's tests: small responders, written with the contracts' models, on a real nats-server.

An event that is published with `received=False` is stored but not delivered, like a core message that was lost.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from nats.aio.msg import Msg

from event_ingest.main import compose as compose_ingest
from message_relay.main import compose as compose_relay
from sandherd.bus.connection import Bus
from sandherd.cli.exit_status import run_command
from sandherd.client import Context, Herd
from sandherd.contracts.commands import Command
from sandherd.contracts.decoder import read_command
from sandherd.contracts.envelope import Envelope, wrap
from sandherd.contracts.errors import Code, Problem
from sandherd.contracts.events import EventData
from sandherd.contracts.events.agent import AgentCompleted, AgentShutdown, AgentStarted
from sandherd.contracts.events.conversation import AgentMessage
from sandherd.contracts.events.sandbox import SandboxRequested, SandboxTerminated
from sandherd.contracts.events.task import TaskAssigned, TaskCompleted, TaskRunning, TaskSubmitted
from sandherd.contracts.requests import (
    EventList,
    ListEvents,
    ListLiveSandboxes,
    ListLiveTasks,
    ListPastSandboxes,
    ListPastTasks,
    Reply,
    Request,
    SandboxList,
    SandboxView,
    StoredEvent,
    TaskList,
    TaskView,
)
from sandherd.contracts.states import SandboxState, TaskState
from sandherd.contracts.subjects import Principal, event_subject, request_subject
from sandherd.stack.broker import Broker
from spawner.main import compose as compose_spawner
from spawner.runtimes.factory import ProcessRuntimeOptions, open_runtime
from tests.models.ports import endpoints
from tests.patience import PATIENCE
from tests.shared_broker import herd

__all__ = ["herd"]

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
TASK, SANDBOX, LIFE = "task-one", "sbx-one", "0"
Answer = Callable[[Any], Any]


class Neighbours:
    """A spawner and an event-ingest that reply from memory, and a worker."""

    def __init__(self, buses: dict[Principal, Bus]) -> None:
        self.buses = buses
        self.stored: list[Envelope[Any]] = []
        self.tasks: dict[str, TaskView] = {}
        self.sandboxes: dict[str, SandboxView] = {}
        self.history_up = True
        self.task = TASK
        self.now = NOW
        """The time of the next events."""
        self.requested: list[Request[Any]] = []
        self._numbers: dict[str, int] = {}
        self._subscriptions: dict[str, Any] = {}

    async def answer(self, principal: Principal, request: type[Request[Any]], give: Answer) -> None:
        """Reply to a request of every project; this replaces the earlier reply."""

        async def on_message(message: Msg) -> None:
            requested = request.model_validate_json(message.data)
            self.requested.append(requested)
            found = give(requested)
            reply = Reply[Any](error=found) if isinstance(found, Problem) else Reply[Any](ok=found)
            # As a service does: without the request's headers, which `respond` repeats.
            await replace(message, headers=None).respond(reply.model_dump_json(exclude_none=True).encode())

        await self.silence(request)
        subject = request_subject(request.type, "x").removesuffix("x") + "*"
        self._subscriptions[request.type] = await self.buses[principal].client.subscribe(subject, cb=on_message)
        await self.buses[principal].flush()

    async def silence(self, request: type[Request[Any]]) -> None:
        """Stop replying, like a service that is not running."""
        if request.type in self._subscriptions:
            await self._subscriptions.pop(request.type).unsubscribe()
            for bus in self.buses.values():
                await bus.flush()

    async def answer_all(self) -> None:
        """Take the place of the spawner and event-ingest."""
        spawner, ingest = Principal.SPAWNER, Principal.EVENT_INGEST
        await self.answer(spawner, ListLiveTasks, lambda requested: TaskList(tasks=_chosen(self.tasks, requested.task)))
        await self.answer(
            spawner,
            ListLiveSandboxes,
            lambda requested: SandboxList(sandboxes=_chosen(self.sandboxes, requested.sandbox)),
        )
        await self.answer(ingest, ListPastTasks, lambda _request: TaskList(tasks=[]))
        await self.answer(ingest, ListPastSandboxes, lambda _request: SandboxList(sandboxes=[]))
        await self.answer(ingest, ListEvents, self.events)

    def events(self, requested: ListEvents) -> EventList | Problem:
        """The events that event-ingest returns, from memory."""
        if not self.history_up:
            return Problem(code=Code.UNAVAILABLE, message="Postgres is away")
        start = int(requested.cursor or 0)
        numbered = [(n, e) for n, e in enumerate(self.stored, 1) if n > start and _is_requested(e, requested)]
        page = numbered[: requested.limit]
        cursor = str(page[-1][0]) if len(numbered) > len(page) else None
        events = [
            StoredEvent(stream_sequence=n, envelope=e.model_dump(mode="json", exclude_none=True)) for n, e in page
        ]
        return EventList(events=events, next_cursor=cursor)

    async def publish_event(
        self, source: str, data: EventData, *, received: bool = True, stored: bool = True, entity: str | None = None
    ) -> Envelope[Any]:
        """Publish the next event of a source: `sandbox/…`, `spawner/…` or `message-relay/…`."""
        service, _, about = source.partition("/")
        self._numbers[source] = number = self._numbers.get(source, 0) + 1
        event = self.envelope(f"/sandherd/{source}", number, data, entity or about.partition("/")[0])
        if stored:
            self.stored.append(event)
        if received:
            principal = Principal.WORKER if service == "sandbox" else Principal(service)
            await self.publish(principal, event)
        return event

    def envelope(self, source: str, number: int, data: EventData, entity: str) -> Envelope[Any]:
        """An event about the one task or its sandbox."""
        sandbox = entity if entity.startswith("sbx-") else None
        return wrap(
            data,
            data.type,
            source=source,
            sequence=number,
            project="default",
            subject=entity,
            time=self.now,
            taskid=self.task,
            sandboxid=sandbox,
        )

    async def publish(self, principal: Principal, event: Envelope[Any]) -> None:
        """Publish an event on its subject; every subscriber has received it when this returns."""
        bus = self.buses[principal]
        await bus.client.publish(event_subject(event.project, event.subject, event.type), event.to_json())
        await bus.flush()

    @property
    def task_source(self) -> str:
        """The source of the task's events: the spawner's record of this life of the task."""
        return f"spawner/{self.task}/{LIFE}"

    async def take(self, principal: Principal) -> Envelope[Command]:
        """Take the next command for a service from its durable consumer."""
        bus = self.buses[principal]
        consumer = await bus.js.pull_subscribe_bind(consumer=f"{principal}-commands", stream="COMMANDS")
        message = (await consumer.fetch(1, timeout=PATIENCE))[0]
        await message.ack()
        return read_command(message.subject, message.data)

    async def begin(self, before_start: Callable[[], Awaitable[None]] | None = None, **lost: bool) -> None:
        """Submit the task and start its agent. Events that `lost` names are not delivered."""
        spawner = self.task_source
        self.tasks[self.task] = a_task(self.task, TaskState.RUNNING)
        self.sandboxes[SANDBOX] = a_sandbox(SandboxState.RUNNING)
        received = {name: False for name, value in lost.items() if value}
        await self.publish_event(
            spawner,
            TaskSubmitted(task="do it", harness="command", runtime="process"),
            received=received.get("submitted", True),
        )
        await self.publish_event(
            f"spawner/{SANDBOX}", SandboxRequested(runtime="process"), received=received.get("requested", True)
        )
        await self.publish_event(spawner, TaskAssigned(sandbox=SANDBOX), received=received.get("assigned", True))
        if before_start is not None:
            await before_start()
        await self.publish_event(
            f"sandbox/{SANDBOX}",
            AgentStarted(timestamp=NOW, sdk="command", task="do it", task_description_length=5),
            received=received.get("started", True),
        )
        await self.publish_event(spawner, TaskRunning(sandbox=SANDBOX), received=received.get("running", True))

    async def attempt(self, sandbox: str, *, received: bool = True) -> None:
        """Publish another attempt, in another sandbox, and the end of the task."""
        self.sandboxes[sandbox] = a_sandbox(SandboxState.RUNNING)
        await self.publish_event(f"spawner/{sandbox}", SandboxRequested(runtime="process"), received=received)
        await self.publish_event(self.task_source, TaskAssigned(sandbox=sandbox, attempt=2), received=received)
        started = AgentStarted(timestamp=NOW, sdk="command", task="do it", task_description_length=5)
        await self.publish_event(f"sandbox/{sandbox}", started, received=received)
        await self.publish_event(self.task_source, TaskRunning(sandbox=sandbox, attempt=2), received=received)
        await self.publish_event(f"sandbox/{sandbox}", AgentCompleted(exit_code=0), received=received)
        self.tasks[self.task] = a_task(self.task, TaskState.COMPLETED).model_copy(update={"sandbox": sandbox})
        await self.publish_event(self.task_source, TaskCompleted(sandbox=sandbox, attempt=2), received=received)

    async def chat(self, text: str, *, received: bool = True, stored: bool = True) -> Envelope[Any]:
        """Publish a message of the agent."""
        chat_message = AgentMessage(content=text, content_length=len(text))
        return await self.publish_event(f"sandbox/{SANDBOX}", chat_message, received=received, stored=stored)

    async def complete(self, *, agent_received: bool = True, task_received: bool = True, stored: bool = True) -> None:
        """Publish the end of the agent, and of the task."""
        await self.publish_event(
            f"sandbox/{SANDBOX}", AgentCompleted(exit_code=0), received=agent_received, stored=stored
        )
        self.tasks[self.task] = a_task(self.task, TaskState.COMPLETED)
        await self.publish_event(
            self.task_source, TaskCompleted(sandbox=SANDBOX), received=task_received, stored=stored
        )

    async def go(self, *, shutdown_received: bool = True) -> None:
        """Publish the end of the sandbox."""
        last = AgentShutdown(reason="done", timestamp=NOW)
        await self.publish_event(f"sandbox/{SANDBOX}", last, received=shutdown_received)
        self.sandboxes[SANDBOX] = a_sandbox(SandboxState.TERMINATED)
        await self.publish_event(f"spawner/{SANDBOX}", SandboxTerminated(runtime="process", reason="done"))


def a_task(name: str, state: TaskState) -> TaskView:
    return TaskView(project="default", task=name, state=state, sandbox=SANDBOX, submitted_at=NOW, text="do it")


def a_sandbox(state: SandboxState) -> SandboxView:
    return SandboxView(project="default", sandbox=SANDBOX, state=state, task=TASK, runtime="process", requested_at=NOW)


def _chosen(views: dict[str, Any], name: str | None) -> list[Any]:
    return [view for key, view in views.items() if name in {None, key}]


def _stored(number: int, event: Envelope[Any]) -> StoredEvent:
    return StoredEvent(stream_sequence=number, envelope=event.model_dump(mode="json", exclude_none=True))


def _is_requested(event: Envelope[Any], requested: ListEvents) -> bool:
    return all(
        (
            requested.task in {None, event.taskid},
            requested.entity in {None, event.subject},
            requested.sandbox in {None, event.sandboxid},
            requested.source in {None, event.source},
            not requested.types or event.type in requested.types,
            requested.after_sequence is None or event.sequence > requested.after_sequence,
        )
    )


@pytest.fixture
async def neighbours(herd: Broker) -> AsyncIterator[Neighbours]:
    """All neighbours, which reply."""
    async with AsyncExitStack() as stack:
        buses = {
            principal: await stack.enter_async_context(herd.bus(principal, sandbox=SANDBOX))
            for principal in (Principal.SPAWNER, Principal.EVENT_INGEST, Principal.MESSAGE_RELAY, Principal.WORKER)
        }
        found = Neighbours(buses)
        await found.answer_all()
        yield found


@pytest.fixture
def context(herd: Broker) -> Context:
    """A user in the default project."""
    return Context(nats_url=herd.url, credentials=herd.credentials(Principal.CLIENT), project="default", home=herd.home)


@pytest.fixture
async def client(context: Context) -> AsyncIterator[Herd]:
    """A connected client."""
    async with Herd.connect(context, patience=PATIENCE) as connected:
        yield connected


@pytest.fixture
def sandherd(
    context: Context, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Any]:
    """A function that runs the command as a user would; returns its status, output and errors."""
    monkeypatch.setattr("sandherd.telemetry.logs.configure", lambda *_: None)
    monkeypatch.delenv("NATS_URL", raising=False)

    async def run(*words: str) -> tuple[int, str, str]:
        place = ["--nats-url", context.nats_url, "--credentials", str(context.credentials), "--home", str(context.home)]
        status = await asyncio.to_thread(run_command, [*place, *words])
        shown = capsys.readouterr()
        return status, shown.out, shown.err

    return run


@pytest.fixture
def started(context: Context, sandherd_program: Path) -> Callable[..., Any]:
    """A function that starts the command as a separate process."""

    async def start(*words: str, **streams: Any) -> asyncio.subprocess.Process:
        place = ["--nats-url", context.nats_url, "--credentials", str(context.credentials), "--home", str(context.home)]
        pipes: dict[str, Any] = {"stdout": asyncio.subprocess.PIPE, "stderr": asyncio.subprocess.PIPE}
        return await asyncio.create_subprocess_exec(sandherd_program, *place, *words, **(pipes | streams))

    return start


@pytest.fixture
async def line(herd: Broker, postgres: str, tmp_path: Path) -> AsyncIterator[Context]:
    """Running spawner, event-ingest and message-relay; sandboxes that a test leaves are ended."""
    async with AsyncExitStack() as stack:
        stack.push_async_callback(end_sandboxes, tmp_path)
        for principal, compose in (
            (Principal.EVENT_INGEST, compose_ingest),
            (Principal.SPAWNER, compose_spawner),
            (Principal.MESSAGE_RELAY, compose_relay),
        ):
            declared = frozenset(endpoints().split(","))
            settings = herd.settings(principal, database_url=postgres, home=tmp_path, sandbox_endpoints=declared)
            await stack.enter_async_context(compose(settings).running())
        yield Context(
            nats_url=herd.url, credentials=herd.credentials(Principal.CLIENT), project="default", home=tmp_path
        )


async def end_sandboxes(home: Path) -> None:
    """End the sandboxes that a spawner with this home has left: a spawner that ends leaves them to the next one."""
    runtime = await open_runtime(
        ProcessRuntimeOptions(root=home / "sandboxes", quarantine=home / "kept", isolation="none")
    )
    for seen in await runtime.find_all():
        await runtime.remove(seen.unit)
    await runtime.close()


@pytest.fixture
async def real(line: Context) -> AsyncIterator[Herd]:
    async with Herd.connect(line, patience=PATIENCE) as connected:
        yield connected
