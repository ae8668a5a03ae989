"""Commands submit tasks and messages, with a real broker and small responders."""

import asyncio
import json
import signal
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from sandherd.contracts.events.message import (
    MessageAcknowledged,
    MessageDelivered,
    MessageQueued,
    MessageRefused,
    MessageRejected,
)
from sandherd.contracts.events.sandbox import SandboxRunning
from sandherd.contracts.events.task import TaskRefused, TaskRejected
from sandherd.contracts.requests import (
    GetOutput,
    ListEvents,
    ListLiveSandboxes,
    ListLiveTasks,
    ListPastSandboxes,
    ListPastTasks,
    Output,
    OutputChunk,
    TaskList,
    TaskView,
)
from sandherd.contracts.requests.diagnostics import ConsumerBacklog, Examination, ExamineSpawner
from sandherd.contracts.states import TaskState
from sandherd.contracts.subjects import Principal
from tests.patience import PATIENCE
from tests.polling import eventually

TASK, SANDBOX = "task-one", "sbx-one"
INGEST = Principal.EVENT_INGEST
NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)
Neighbours = Any
Sandherd = Callable[..., Any]


@pytest.fixture(autouse=True)
def no_wait_notices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Print no reason why a task waits: on a busy machine any event may be late."""
    monkeypatch.setattr("sandherd.cli.wait_notices.QUIET_SECONDS", float(PATIENCE))


def lines_of(text: str) -> list[Any]:
    return [json.loads(line) for line in text.splitlines()]


async def test_run_is_followed_to_its_end(neighbours: Neighbours, sandherd: Sandherd) -> None:
    """`run` shows the events from the first on, with the agent's output, and ends with the task."""
    chunk = OutputChunk(stream_sequence=1, time=NOON, text="working…\n")
    await neighbours.answer(INGEST, GetOutput, lambda _: Output(chunks=[chunk]))
    running = asyncio.ensure_future(sandherd("run", "compute it", "--", "python3", "agent.py"))
    command = await neighbours.take(Principal.SPAWNER)
    neighbours.task = command.subject
    await neighbours.begin()
    await neighbours.chat("half way")
    await neighbours.complete()
    status, out, err = await running
    assert (status, err) == (0, "")
    assert "half way" in out
    assert "task.completed" in out.splitlines()[-1] or "working…" in out.splitlines()[-1]
    assert "│ working…" in out
    assert command.data.spec.harness.argv == ["python3", "agent.py"]


async def test_name_of_a_followed_task_is_all_that_run_prints(neighbours: Neighbours, sandherd: Sandherd) -> None:
    """With `-o name` the exit status is that of the task."""
    chunk = OutputChunk(stream_sequence=1, time=NOON, text="working…\n")
    await neighbours.answer(INGEST, GetOutput, lambda _: Output(chunks=[chunk]))
    running = asyncio.ensure_future(sandherd("run", "compute it", "-o", "name", "--", "true"))
    neighbours.task = (await neighbours.take(Principal.SPAWNER)).subject
    await neighbours.begin()
    await neighbours.complete()
    assert await running == (0, f"{neighbours.task}\n", "")


async def test_live_output_waits_for_missing_events(
    neighbours: Neighbours, sandherd: Sandherd, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An event that the history has late is shown before younger events of other sources."""
    monkeypatch.setattr("sandherd.client.events.time_order.LIMIT_SECONDS", PATIENCE)
    running = asyncio.ensure_future(sandherd("run", "compute it", "-o", "json", "--", "true"))
    neighbours.task = (await neighbours.take(Principal.SPAWNER)).subject
    await neighbours.begin()
    seconds = timedelta(seconds=1)
    neighbours.now += seconds
    late = await neighbours.chat("first", received=False, stored=False)
    neighbours.now += seconds
    await neighbours.chat("second")
    neighbours.now += seconds
    await neighbours.publish_event(f"spawner/{SANDBOX}", SandboxRunning(runtime="process"))

    def requests() -> int:
        return sum(
            isinstance(requested, ListEvents) and requested.source == late.source for requested in neighbours.requested
        )

    wanted = requests() + 4  # which takes longer than the shortest delay of events
    await eventually(lambda: requests() >= wanted)
    neighbours.stored.append(late)
    await neighbours.complete()
    status, out, err = await running
    assert (status, err) == (0, "")
    times = [line["time"] for line in lines_of(out)]
    assert times == sorted(times)
    assert any(line["data"].get("content") == "first" for line in lines_of(out))


def examining(unread: list[int]) -> Callable[[ExamineSpawner], Examination]:
    """The spawner's reply with the number of commands that it has not read."""

    def examine(_request: ExamineSpawner) -> Examination:
        backlog = ConsumerBacklog(consumer="spawner-commands", pending=unread[0], unacknowledged=0, still_seconds=0)
        return Examination(service="spawner", version="1", instance="i", now=NOON, parts=[], waiting=[backlog])

    return examine


EARLIER = TaskView(project="default", task=TASK, state=TaskState.COMPLETED, submitted_at=NOON, text="an earlier one")


@pytest.mark.parametrize("received", [True, False], ids=["live", "history"])
@pytest.mark.parametrize("follow", ["--follow", "--no-follow"])
async def test_run_refuses_the_name_of_another_task(
    neighbours: Neighbours, sandherd: Sandherd, follow: str, received: bool
) -> None:
    """The spawner decides; no event of the earlier task is shown as one of its own."""
    unread = [1]
    await neighbours.answer(Principal.SPAWNER, ExamineSpawner, examining(unread))
    await neighbours.answer(
        INGEST, ListPastTasks, lambda requested: TaskList(tasks=[EARLIER] * (requested.task == TASK))
    )
    await neighbours.begin()
    running = asyncio.ensure_future(sandherd("run", "compute it", "--name", TASK, follow, "--", "true"))
    command = await neighbours.take(Principal.SPAWNER)
    taken: dict[str, Any] = {"reason": f"another task {TASK} already exists", "field": "task", "code": "conflict"}
    refusal = TaskRefused(command=command.type, command_id=str(command.id), **taken)
    await neighbours.publish_event(f"spawner/{TASK}/{command.id.hex}", refusal, received=received)
    unread[0] = 0
    status, out, err = await running
    assert (status, out) == (1, "")
    assert f"another task {TASK} already exists; choose another --name" in err


@pytest.mark.parametrize("follow", ["--follow", "--no-follow"])
async def test_run_shows_the_same_task_that_was_submitted_before(
    neighbours: Neighbours, sandherd: Sandherd, follow: str
) -> None:
    """`run` waits until the spawner has read its command without refusing it; another's refusal has no effect."""
    unread = [1]
    await neighbours.answer(Principal.SPAWNER, ExamineSpawner, examining(unread))
    await neighbours.begin()
    await neighbours.complete()
    running = asyncio.ensure_future(sandherd("run", "do it", "--name", TASK, follow, "--", "true"))
    command = await neighbours.take(Principal.SPAWNER)
    other = TaskRefused(command=command.type, command_id=str(uuid4()), reason="no", code="conflict")
    await neighbours.publish_event(f"spawner/{TASK}/{'c' * 32}", other)
    await eventually(lambda: sum(isinstance(requested, ExamineSpawner) for requested in neighbours.requested) > 1)
    assert not running.done()
    unread[0] = 0
    status, out, err = await running
    assert status == 0
    assert f"{TASK} was submitted before" in err
    assert ("task.completed" in out) == (follow == "--follow")
    assert TASK in out


async def test_run_with_files_refuses_a_name_in_use(neighbours: Neighbours, sandherd: Sandherd, tmp_path: Path) -> None:
    """A name in use is refused before sending, as uploaded files differ each time."""
    await neighbours.begin()
    status, _, err = await sandherd("run", "do it", "--name", TASK, "--dir", str(tmp_path), "--", "true")
    assert status == 1
    assert "which has other files; choose another --name" in err


@pytest.mark.parametrize("output", ["table", "json"])
async def test_refused_task_is_a_usage_error(neighbours: Neighbours, sandherd: Sandherd, output: str) -> None:
    """The reason and the remedy are one line on standard error, with status 2; the reason is shown once."""
    running = asyncio.ensure_future(sandherd("run", "x", "--runtime", "nonsense", "-o", output, "--", "true"))
    command = await neighbours.take(Principal.SPAWNER)
    neighbours.task = command.subject
    reason = f"there is no runtime {command.data.spec.runtime!r} here; there is: process"
    rejected = TaskRejected(reason=reason, field="spec.runtime")
    await neighbours.publish_event(f"spawner/{command.subject}/{command.id.hex}", rejected)
    status, out, err = await running
    assert status == 2
    assert ("there is no runtime" in out) == (output == "json")
    assert err.startswith(f"sandherd: {command.subject} was rejected: {reason}; ")
    assert err.count("\n") == 1
    assert "--runtime" in err


@pytest.mark.parametrize("rejected", [False, True])
async def test_send_waits_for_the_receipt(neighbours: Neighbours, sandherd: Sandherd, rejected: bool) -> None:
    """`send` waits until the agent has the message, or can't get it, and shows the duration of the delivery."""
    sending = asyncio.ensure_future(sandherd("send", SANDBOX, "hello", "-o", "json"))
    command = await neighbours.take(Principal.MESSAGE_RELAY)
    name = command.data.message
    source = f"message-relay/{name}"
    await neighbours.publish_event(source, MessageQueued(message_id=name, content_length=5), entity=SANDBOX)
    if rejected:
        await neighbours.publish_event(source, MessageRejected(message_id=name, reason="it has ended"), entity=SANDBOX)
    else:
        await neighbours.publish_event(source, MessageDelivered(message_id=name, delivery_ms=1.5), entity=SANDBOX)
        await neighbours.publish_event(source, MessageAcknowledged(message_id=name), entity=SANDBOX)
    status, out, err = await sending
    found = json.loads(out)
    assert status == int(rejected)
    assert found["state"] == ("rejected" if rejected else "acknowledged")
    assert found.get("delivery_ms") == (None if rejected else 1.5)
    assert ("it has ended" in err) is rejected


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ([], "user_message"),
        (["--as", "nudge"], "guardian_nudge"),
        (["--as", "system"], "system"),
        (["--interrupt"], "interrupt"),
    ],
    ids=str,
)
async def test_message_has_its_sender_type(
    neighbours: Neighbours, sandherd: Sandherd, options: list[str], kind: str
) -> None:
    """A message is a user's, a nudge, a system's note or an interrupt."""
    sending = asyncio.ensure_future(sandherd("send", SANDBOX, "hello", *options))
    command = await neighbours.take(Principal.MESSAGE_RELAY)
    name = command.data.message
    await neighbours.publish_event(f"message-relay/{name}", MessageAcknowledged(message_id=name), entity=SANDBOX)
    assert (await sending)[0] == 0
    assert command.data.message_type == kind


async def test_lost_receipt_is_found_in_the_history(neighbours: Neighbours, sandherd: Sandherd) -> None:
    """A receipt that the live subscription has lost is found in the history."""
    sending = asyncio.ensure_future(sandherd("send", SANDBOX, "hello"))
    name = (await neighbours.take(Principal.MESSAGE_RELAY)).data.message
    source = f"message-relay/{name}"
    await neighbours.publish_event(
        source, MessageQueued(message_id=name, content_length=5), received=False, entity=SANDBOX
    )
    await neighbours.publish_event(source, MessageAcknowledged(message_id=name), received=False, entity=SANDBOX)
    assert (await sending)[0] == 0


@pytest.mark.parametrize("received", [True, False], ids=["live", "history"])
@pytest.mark.parametrize("refused", [True, False], ids=["refused", "rejected"])
async def test_send_shows_that_its_command_was_not_executed(
    neighbours: Neighbours, sandherd: Sandherd, refused: bool, received: bool
) -> None:
    """An event with the command's id, of any source, that refuses it ends `send` with status 1 and the reason."""
    sending = asyncio.ensure_future(sandherd("send", SANDBOX, "hello", "-o", "json"))
    command = await neighbours.take(Principal.MESSAGE_RELAY)
    name, kind = command.data.message, command.type
    other = MessageRefused(command=kind, reason="of another command", code="conflict", command_id=str(uuid4()))
    await neighbours.publish_event(f"message-relay/{SANDBOX}/{'a' * 32}", other, received=received)
    data = (
        MessageRefused(command=kind, reason="the name is taken", code="conflict", command_id=str(command.id))
        if refused
        else MessageRejected(message_id=name, reason="the name is taken", code="conflict")
    )
    await neighbours.publish_event(f"message-relay/{SANDBOX}/{'b' * 32}", data, received=received)
    status, out, err = await sending
    found = json.loads(out)
    assert (status, found["state"], found["code"]) == (1, "rejected", "conflict")
    assert "the name is taken" in err


@pytest.mark.parametrize("words", [["tasks", "cancel", TASK], ["sandboxes", "terminate", SANDBOX]], ids=" ".join)
async def test_command_is_stored_while_its_service_is_down(
    neighbours: Neighbours, sandherd: Sandherd, words: list[str]
) -> None:
    """The broker stores the command, although the client can't show a state."""
    for request in (ListLiveTasks, ListLiveSandboxes, ListPastTasks, ListPastSandboxes):
        await neighbours.silence(request)
    status, out, _ = await sandherd(*words)
    assert status == 0
    assert "unavailable" in out
    assert (await neighbours.take(Principal.SPAWNER)).subject == words[-1]


async def test_interrupted_run_states_that_the_task_continues(
    neighbours: Neighbours, started: Callable[..., Any]
) -> None:
    """Ctrl-C ends the watching and not the task: status 130, one line with how to stop it, no traceback."""
    process = await started("run", "long work", "--", "sleep", "100")
    neighbours.task = (await neighbours.take(Principal.SPAWNER)).subject
    await neighbours.begin()
    async for line in process.stdout:
        if b"task.running" in line:
            process.send_signal(signal.SIGINT)
            break
    _, err = await process.communicate()
    assert process.returncode == 130
    assert err.decode().splitlines() == [
        f"sandherd: {neighbours.task} keeps running; stop it with `sandherd tasks cancel {neighbours.task}`"
    ]
