"""Commands that follow or wait for an event print no terminal controls of hostile events."""

import asyncio
import re
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from datetime import UTC, datetime

import pytest

from sandherd.client.events import decoder
from sandherd.contracts.commands import Command
from sandherd.contracts.envelope import Envelope
from sandherd.contracts.events import EVENTS
from sandherd.contracts.events.base import types_with_state
from sandherd.contracts.requests import GetOutput, ListEvents, Output, OutputChunk
from sandherd.contracts.states import TASK_ENDED, SandboxState, TaskState
from sandherd.contracts.subjects import OUTPUT, Principal, event_subject
from sandherd.stack.broker import Broker
from tests.integration.client.conftest import Neighbours, a_sandbox, a_task
from tests.integration.client.hostile import HOSTILE, forbidden, live_event
from tests.integration.client.hostile_commands import GIVEN, SANDBOX, TASK, Given, Words
from tests.polling import eventually

Run = Callable[..., Awaitable[tuple[int, str, str]]]
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_FIRST = ("task.submitted", "sandbox.requested", "task.assigned", "agent.started")
_ENDS_OF_A_TASK = types_with_state(TASK_ENDED, EVENTS)
_LAST = ("agent.completed", "agent.shutdown", "sandbox.failed", "task.failed")
_BETWEEN = sorted(EVENTS.keys() - {*_FIRST, *_LAST, *_ENDS_OF_A_TASK, "task.rejected", "sandbox.terminated"})


class Feed:
    """Publishes poisoned golden events, each by its service; their numbers begin at 1."""

    def __init__(self, neighbours: Neighbours, task: str) -> None:
        self.published: dict[str, str] = {}
        """The entity of the event, by type."""
        self._neighbours = neighbours
        self._task = task
        self._numbers: dict[str, int] = {}

    async def publish_all(self, *types: str) -> None:
        """Publish all of these types, in this order."""
        for event_type in types:
            await self.publish(event_type)

    async def publish(self, event_type: str) -> None:
        """Publish an event about the task, or about its sandbox."""
        service = EVENTS[event_type].emitted_by
        principal = Principal.WORKER if service in {"worker", "driver", "agent"} else Principal(service)
        entity = self._task if event_type.startswith(("task.", "branch.")) else SANDBOX
        source = f"sandbox/{SANDBOX}" if principal is Principal.WORKER else f"{principal}/{entity}"
        number = self._numbers[source] = self._numbers.get(source, 0) + 1
        named = {"sandbox": SANDBOX} if "sandbox" in EVENTS[event_type].model_fields else {}
        subject = event_subject("default", entity, event_type)
        document = live_event(subject, f"/sandherd/{source}", number, task=self._task, **named)
        event = decoder.from_live(subject, document)
        assert event is not None
        self._neighbours.stored.append(event)  # a follower that has not subscribed yet reads it from the history
        await self._neighbours.buses[principal].client.publish(subject, document)
        await self._neighbours.buses[principal].flush()
        self.published[event_type] = entity


@pytest.fixture
async def hostile(neighbours: Neighbours, herd: Broker) -> AsyncIterator[Neighbours]:
    """The neighbours and a monitor, with hostile output."""
    async with AsyncExitStack() as stack:
        neighbours.buses[Principal.MONITOR] = await stack.enter_async_context(herd.bus(Principal.MONITOR))
        chunk = OutputChunk(stream_sequence=1, time=datetime.now(UTC), text=f"{HOSTILE}\nworking\n")
        await neighbours.answer(Principal.EVENT_INGEST, GetOutput, lambda _request: Output(chunks=[chunk]))
        neighbours.sandboxes[SANDBOX] = a_sandbox(SandboxState.RUNNING)
        yield neighbours


@pytest.fixture(params=["terminal", "json"])
def form(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    """The output: a table on a terminal, with colours; or JSON."""
    assert capsys.readouterr().out == ""
    if request.param == "terminal":  # set at the class: each phase of a test may have another object
        monkeypatch.setattr(type(sys.stdout), "isatty", lambda _stream: True)
        monkeypatch.delenv("NO_COLOR", raising=False)
    return "table" if request.param == "terminal" else "json"


def _clean(shown: str, form: str) -> None:
    """Check that the output is visible, and contains no terminal control."""
    assert not forbidden(_COLOUR.sub("", shown) if form == "table" else shown)
    assert ("<U+202E>" if form == "table" else "\\u202e") in shown


async def test_followed_texts_are_neutralised(hostile: Neighbours, sandherd: Run, form: str) -> None:
    """`run`, `events --follow` and `logs --follow` make every poisoned golden event and output harmless."""
    await _run(hostile, sandherd, form)
    await _follow_events(hostile, sandherd, form)
    await _follow_output(hostile, sandherd, form)


async def _run(hostile: Neighbours, sandherd: Run, form: str) -> None:
    running = asyncio.ensure_future(sandherd("run", "do it", "-o", form, "--", "true"))
    feed = Feed(hostile, (await hostile.take(Principal.SPAWNER)).subject)
    await feed.publish_all(*_FIRST)
    if form == "table":  # as JSON it shows only events
        await _read_output(hostile)
    await feed.publish_all(*_BETWEEN, *_LAST)
    status, out, err = await running
    assert status == 1
    _clean(out, form)
    assert not forbidden(err)
    assert not [name for name in feed.published if name not in out]
    assert form == "json" or "│ \x1b[0m␛[2J" in out


async def _follow_events(hostile: Neighbours, sandherd: Run, form: str) -> None:
    hostile.requested.clear()
    hostile.stored.clear()
    following = asyncio.ensure_future(sandherd("events", SANDBOX, "--follow", "-o", form))
    await eventually(lambda: any(isinstance(one, ListEvents) for one in hostile.requested))  # it has subscribed
    feed = Feed(hostile, TASK)
    await feed.publish_all(*_FIRST, *_BETWEEN, *_LAST)
    status, out, err = await following
    assert (status, err) == (0, "")
    _clean(out, form)
    assert not [name for name, entity in feed.published.items() if entity == SANDBOX and name not in out]


async def _follow_output(hostile: Neighbours, sandherd: Run, form: str) -> None:
    hostile.requested.clear()
    hostile.stored.clear()
    following = asyncio.ensure_future(sandherd("logs", SANDBOX, "--follow", "-o", form))
    await _read_output(hostile)
    hostile.sandboxes[SANDBOX] = a_sandbox(SandboxState.TERMINATED)
    status, out, err = await following
    assert (status, err) == (0, "")
    _clean(out, form)
    assert "working" in out


async def _read_output(hostile: Neighbours) -> None:
    """Publish more output, and wait until the command requests it: the earlier output is printed by then."""

    def requested() -> int:
        return sum(isinstance(one, GetOutput) for one in hostile.requested)

    await eventually(requested)
    before, subject = requested(), OUTPUT.fill(project="default", sandbox=SANDBOX)
    await hostile.buses[Principal.WORKER].client.publish(subject, HOSTILE.encode())
    await eventually(lambda: requested() > before)


async def test_hostile_refusals_of_commands_are_neutralised(hostile: Neighbours, sandherd: Run) -> None:
    """A poisoned event ends every command that waits for one: its reason is harmless in the error."""
    for command, cases in GIVEN.items():
        for given in cases:
            hostile.sandboxes[SANDBOX] = a_sandbox(given.state)
            hostile.tasks[TASK] = a_task(TASK, TaskState.FAILED)
            running = asyncio.ensure_future(sandherd(*command, *given.words))
            await _end(hostile, command, given, await hostile.take(given.taken_by))
            status, out, err = await running
            assert status != 0, command
            assert not forbidden(out + err), command
            assert "␛[2J" in err, (command, err)


async def _end(hostile: Neighbours, command: Words, given: Given, taken: Envelope[Command]) -> None:
    """Publish and store the event that ends the command, which then requests whether it has received all before."""
    message = getattr(taken.data, "message", None)
    named = given.data | ({"message_id": message} if message else {})
    about = f"{message}" if message else taken.subject
    source = f"/sandherd/{given.taken_by}/{about}"
    if given.event.endswith((".rejected", ".refused")) and not message:
        source += f"/{taken.id.hex}"
    subject = event_subject("default", taken.subject, given.event)
    document = live_event(subject, source, 1, **named)
    event = decoder.from_live(subject, document)
    assert event is not None, command
    hostile.stored.append(event)
    await hostile.buses[given.taken_by].client.publish(subject, document)
    await hostile.buses[given.taken_by].flush()
