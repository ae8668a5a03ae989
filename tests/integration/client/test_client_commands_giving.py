"""Giving work and messages by command, against a real broker and small responders."""

import asyncio
import json
import signal
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from sandherd.contracts.events.lifecycle import TaskFailed, TaskRejected
from sandherd.contracts.events.message import MessageAcknowledged, MessageDelivered, MessageQueued, MessageRejected
from sandherd.contracts.requests import (
    AskOutput,
    LiveSandboxes,
    LiveTasks,
    Output,
    OutputChunk,
    PastSandboxes,
    PastTasks,
)
from sandherd.contracts.subjects import Principal

TASK, SANDBOX = "task-one", "sbx-one"
INGEST = Principal.EVENT_INGEST
NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)
Neighbours = Any
Sandherd = Callable[..., Any]


def lines_of(text: str) -> list[Any]:
    return [json.loads(line) for line in text.splitlines()]


async def test_a_run_is_followed_to_its_end(neighbours: Neighbours, sandherd: Sandherd) -> None:
    """`run` shows what happens from the first event, with the agent's output between, and ends with the task."""
    chunk = OutputChunk(stream_sequence=1, time=NOON, text="working…\n")
    await neighbours.answer(INGEST, AskOutput, lambda _: Output(chunks=[chunk]))
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


async def test_a_run_that_fails_is_status_1(neighbours: Neighbours, sandherd: Sandherd) -> None:
    """A task that did not complete fails the command, which says where to look."""
    running = asyncio.ensure_future(sandherd("run", "compute it", "-o", "json", "--", "false"))
    neighbours.task = (await neighbours.take(Principal.SPAWNER)).subject
    await neighbours.say(neighbours.teller, TaskFailed(error="no sandbox", error_type="start"))
    status, out, err = await running
    assert status == 1
    assert lines_of(out)[-1]["type"] == "task.failed"
    assert "sandherd events" in err


@pytest.mark.parametrize("output", ["table", "json"])
async def test_a_task_that_is_not_taken_is_wrong_usage(neighbours: Neighbours, sandherd: Sandherd, output: str) -> None:
    """One line on standard error with the reason and what helps, and status 2."""
    running = asyncio.ensure_future(sandherd("run", "x", "--runtime", "nonsense", "-o", output, "--", "true"))
    command = await neighbours.take(Principal.SPAWNER)
    neighbours.task = command.subject
    reason = f"there is no runtime {command.data.spec.runtime!r} here; there is: process"
    rejected = TaskRejected(reason=reason, field="spec.runtime")
    await neighbours.say(f"spawner/{command.subject}/{command.id.hex}", rejected)
    status, _, err = await running
    assert status == 2
    assert err.startswith(f"sandherd: {command.subject} was not taken: {reason}; ")
    assert err.count("\n") == 1
    assert "--runtime" in err


@pytest.mark.parametrize("rejected", [False, True])
async def test_a_message_is_sent_to_its_receipt(neighbours: Neighbours, sandherd: Sandherd, rejected: bool) -> None:
    """`send` waits until the agent has the message, or can't have it, and shows how long the delivery took."""
    sending = asyncio.ensure_future(sandherd("send", SANDBOX, "hello", "-o", "json"))
    command = await neighbours.take(Principal.MESSAGE_RELAY)
    name = command.data.message
    source = f"message-relay/{name}"
    await neighbours.say(source, MessageQueued(message_id=name, content_length=5), entity=SANDBOX)
    if rejected:
        await neighbours.say(source, MessageRejected(message_id=name, reason="it has ended"), entity=SANDBOX)
    else:
        await neighbours.say(source, MessageDelivered(message_id=name, delivery_ms=1.5), entity=SANDBOX)
        await neighbours.say(source, MessageAcknowledged(message_id=name), entity=SANDBOX)
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
async def test_a_message_is_said_as_whose_it_is(
    neighbours: Neighbours, sandherd: Sandherd, options: list[str], kind: str
) -> None:
    """As a user's, as a nudge, as a note of the system's, or to interrupt."""
    sending = asyncio.ensure_future(sandherd("send", SANDBOX, "hello", *options))
    command = await neighbours.take(Principal.MESSAGE_RELAY)
    name = command.data.message
    await neighbours.say(f"message-relay/{name}", MessageAcknowledged(message_id=name), entity=SANDBOX)
    assert (await sending)[0] == 0
    assert command.data.message_type == kind


async def test_a_receipt_that_was_not_heard_is_found(neighbours: Neighbours, sandherd: Sandherd) -> None:
    """A receipt that the live subscription lost is found in the history."""
    sending = asyncio.ensure_future(sandherd("send", SANDBOX, "hello"))
    name = (await neighbours.take(Principal.MESSAGE_RELAY)).data.message
    source = f"message-relay/{name}"
    await neighbours.say(source, MessageQueued(message_id=name, content_length=5), heard=False, entity=SANDBOX)
    await neighbours.say(source, MessageAcknowledged(message_id=name), heard=False, entity=SANDBOX)
    assert (await sending)[0] == 0


@pytest.mark.parametrize("words", [["tasks", "cancel", TASK], ["sandboxes", "terminate", SANDBOX]], ids=" ".join)
async def test_a_command_is_kept_while_its_service_is_away(
    neighbours: Neighbours, sandherd: Sandherd, words: list[str]
) -> None:
    """With nobody to tell how a thing stands, the command is given all the same: the broker keeps it."""
    for request in (LiveTasks, LiveSandboxes, PastTasks, PastSandboxes):
        await neighbours.silence(request)
    status, out, _ = await sandherd(*words)
    assert status == 0
    assert "away" in out
    assert (await neighbours.take(Principal.SPAWNER)).subject == words[-1]


async def test_an_interrupted_run_says_what_goes_on(neighbours: Neighbours, started: Callable[..., Any]) -> None:
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
        f"sandherd: {neighbours.task} goes on; stop it with `sandherd tasks cancel {neighbours.task}`"
    ]
