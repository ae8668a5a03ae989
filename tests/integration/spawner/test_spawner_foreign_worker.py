"""A worker in plain nats-py, made from the code blocks of docs/workers.md, in a herd of real services."""

import contextlib
import hashlib
import os
import re
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from event_ingest.main import compose as compose_ingest
from message_relay.main import compose as compose_relay
from sandherd.contracts.chunks import ChunkReceiver
from sandherd.contracts.commands import AnswerApproval, CancelTask, SendMessage
from sandherd.contracts.events import ArtifactRef
from sandherd.contracts.names import new_name
from sandherd.contracts.requests import DownloadChunk, GetAudit
from sandherd.contracts.subjects import Principal
from sandherd.service.service import Service
from sandherd.stack.broker import Broker
from tests.patience import PATIENCE
from tests.polling import eventually

GUIDE = Path(__file__).parents[3] / "docs" / "workers.md"
SANDBOX_WORDS = "all of it"
LONG_OUTPUT = ["sh", "-c", f"yes {SANDBOX_WORDS} | head -c 300000"]
ENDS = ["agent.failed", "agent.shutdown"]


def program() -> str:
    """The program of the guide: its code blocks in order."""
    blocks = re.findall(r"^```python\n(.*?)^```", GUIDE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    assert len(blocks) >= 6
    assert "sandherd" not in "".join(re.findall(r"^(?:import|from) .*", "".join(blocks), re.MULTILINE))
    return "".join(blocks)


@pytest.fixture
def approval_seconds() -> float:
    """How long the guide's worker waits for an approval."""
    return 600


@pytest.fixture
async def herd_of_all(
    spawner: Callable[..., Service], herd: Broker, postgres: str, approval_seconds: float
) -> AsyncIterator[None]:
    """The spawner, whose sandboxes run the guide's worker, message-relay and event-ingest."""
    of_guide = program()
    assert "APPROVAL_SECONDS = 600" in of_guide
    own = of_guide.replace("APPROVAL_SECONDS = 600", f"APPROVAL_SECONDS = {approval_seconds}")
    worker = (sys.executable, "-P", "-c", own)
    services = [
        compose_relay(herd.settings(Principal.MESSAGE_RELAY)),
        compose_ingest(herd.settings(Principal.EVENT_INGEST, database_url=postgres)),
        spawner(worker=worker, heartbeat_interval=1),
    ]
    async with AsyncExitStack() as stack:
        for service in services:
            await stack.enter_async_context(service.running())
        yield


async def test_worker_of_the_guide_does_what_a_worker_has_to(herd_of_all: None, person: Any) -> None:
    """The guide's worker completes tasks, stores an artifact, ends when it is stopped, and recovers."""
    for check in (check_completes_a_task, check_publishes_an_artifact, check_ends_when_it_is_stopped, check_recovers):
        await check(person)


async def approval_of(person: Any, sandbox: str) -> str:
    await person.receives(sandbox, "approval.requested")
    return str(person.event_data(sandbox, "approval.requested")["approval_id"])


async def begun(person: Any, argv: list[str]) -> tuple[str, str, str]:
    """Start a task whose agent waits for an approval; returns the task, its sandbox, and the approval."""
    task = await person.submit(argv)
    sandbox = (await person.reaches(task, "running")).sandbox
    return task, sandbox, await approval_of(person, sandbox)


async def answer(person: Any, sandbox: str, approval: str, *, granted: bool) -> None:
    command = AnswerApproval(message=new_name("msg"), sandbox=sandbox, approval_id=approval, granted=granted)
    await person.command(command, sandbox)


async def check_history(person: Any, sandbox: str) -> None:
    """Check that the history has every event of the worker without a gap, and that there is no dead letter."""
    await person.receives(sandbox, "sandbox.terminated")
    own = [event for event in person.unique() if event["source"] == f"/sandherd/sandbox/{sandbox}"]
    assert [event["sequence"] for event in own] == list(range(1, len(own) + 1))
    assert own[-1]["type"] == "agent.shutdown"
    assert person.event_data(sandbox, "sandbox.terminated")["unsaid"] is False

    async def is_stored() -> bool:
        audit = await person.bus.ask(GetAudit(sandbox=sandbox), "p1", timeout=PATIENCE)
        if audit.unstored:  # an event may be stored before an earlier one
            return False
        assert (audit.missing, audit.dead, audit.conflicts) == (0, 0, 0)
        return True

    await eventually(is_stored)


async def check_completes_a_task(person: Any) -> None:
    """Check that it joins, publishes heartbeats, takes a message once, waits for an approval, runs, and ends."""
    task, sandbox, approval = await begun(person, ["sh", "-c", "echo made by hand"])
    message = new_name("msg")
    await person.command(SendMessage(message=message, sandbox=sandbox, content="mind the gap"), sandbox)
    await person.receives(sandbox, "message.acknowledged")
    await person.receives(sandbox, "agent.message_injected")
    assert person.event_data(sandbox, "agent.message_injected")["content"] == "mind the gap"
    await person.receives(sandbox, "agent.heartbeat")
    await answer(person, sandbox, approval, granted=True)
    view = await person.ended(task)
    assert (view.state, view.result["final_output"]) == ("completed", "made by hand\n")
    await check_history(person, sandbox)
    types = [kind for kind in person.types(sandbox) if kind.startswith("agent.") and kind != "agent.heartbeat"]
    assert types == [
        *("agent.started", "agent.approval_requested", "agent.message_injected", "agent.message_injected"),
        *("agent.completed", "agent.shutdown"),
    ]
    await person.all_gone()


async def check_publishes_an_artifact(person: Any) -> None:
    """Check that output too long for its event is stored in chunks, and that the reference leads to all of it."""
    task, sandbox, approval = await begun(person, LONG_OUTPUT)
    await answer(person, sandbox, approval, granted=True)
    assert (await person.ended(task)).state == "completed"
    await check_artifact(person, sandbox)
    await check_history(person, sandbox)


async def check_artifact(person: Any, sandbox: str) -> None:
    """Check that the reference in the agent's last event leads to all 300,000 bytes of its output."""
    reference = ArtifactRef.model_validate(person.event_data(sandbox, "agent.completed")["artifacts"]["output"])
    receiver, content = ChunkReceiver(reference), bytearray(reference.size)
    while not receiver.complete:
        request = DownloadChunk(sandbox=sandbox, artifact=reference.artifact, after=receiver.after)
        chunk = await person.bus.ask(request, "p1")
        offset = receiver.accept(chunk)
        content[offset : offset + len(chunk.data)] = chunk.data
    assert (reference.size, reference.chunks) == (300_000, 3)
    assert hashlib.sha256(content).hexdigest() == reference.sha256
    assert content.startswith(SANDBOX_WORDS.encode())


@pytest.mark.parametrize("approval_seconds", [0.5])
async def test_worker_of_the_guide_applies_the_timeout_of_an_approval(herd_of_all: None, person: Any) -> None:
    """Without a decision the worker continues as `on_timeout` says, and message-relay states the outcome."""
    task, sandbox, _ = await begun(person, ["true"])
    assert (await person.ended(task)).error == "it was not approved"
    await person.receives(sandbox, "approval.expired")
    assert person.event_data(sandbox, "approval.expired")["outcome"] == "denied"
    await check_history(person, sandbox)


async def check_ends_when_it_is_stopped(person: Any) -> None:
    """Check that a task fails after a denied approval, and that a cancelled task's worker ends in order, by SIGTERM."""
    task, sandbox, approval = await begun(person, ["true"])
    await answer(person, sandbox, approval, granted=False)
    assert (await person.ended(task)).error == "it was not approved"
    await check_history(person, sandbox)
    task, sandbox, _ = await begun(person, ["true"])
    await person.command(CancelTask(task=task), task)
    assert (await person.ended(task)).state == "cancelled"
    await check_history(person, sandbox)
    assert [kind for kind in person.types(sandbox) if kind in ENDS] == ENDS
    await person.all_gone()


async def check_recovers(person: Any) -> None:
    """Check that a killed worker is started again with `--recover`, and continues the sequence of the lost one."""
    task, sandbox, _ = await begun(person, ["true"])
    kill_worker(sandbox)
    assert (await person.ended(task)).error_type == "worker_lost"
    await check_history(person, sandbox)
    assert [kind for kind in person.types(sandbox) if kind in ENDS] == ENDS
    await person.all_gone()


def kill_worker(sandbox: str) -> None:
    """Kill the processes whose environment names the sandbox."""
    mark, found = f"SANDHERD_SANDBOX_ID={sandbox}".encode(), []
    for process in Path("/proc").iterdir():
        try:
            if process.name.isdigit() and mark in (process / "environ").read_bytes().split(b"\0"):
                found.append(int(process.name))
        except OSError:
            continue
    assert found
    for number in found:
        with contextlib.suppress(ProcessLookupError):  # it ended with the first of its sandbox
            os.kill(number, signal.SIGKILL)
