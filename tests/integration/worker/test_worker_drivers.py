"""A whole worker with an agent in a driver: messages, approvals, sessions, and exactly one end."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psutil
import pytest

from sandherd.bus.connection import Bus
from sandherd.contracts.attempt_inputs import Previous, StoredSession
from sandherd.contracts.inbox_messages import InboxMessage
from sandherd.contracts.names import new_name
from sandherd.contracts.principals import Principal
from sandherd.contracts.resume import Resume
from sandherd.stack.broker import Broker
from sandherd_worker.worker_exit import ExitCode
from tests.task_repositories import Origin

ECHO = Path(__file__).parents[2] / "drivers" / "scripted" / "echo_driver"

Driven = Callable[..., Any]


@pytest.fixture
def driven(sandbox: Any, tmp_path: Path) -> Driven:
    """A sandbox whose agent is the echo driver, which takes the place of an ACP agent."""

    def make(*task: str, **fields: Any) -> Any:
        packages = tmp_path / "packages"
        python = tmp_path / "toolchains" / "acp" / "bin" / "python"
        python.parent.mkdir(parents=True, exist_ok=True)
        packages.mkdir(exist_ok=True)
        (packages / "echo_driver").unlink(missing_ok=True)
        (packages / "echo_driver").symlink_to(ECHO)
        # The worker starts `sandherd_drivers.acp`; this interpreter has another module of that name.
        python.write_text(
            f'#!/bin/sh\nexport PYTHONPATH="$PYTHONPATH:{packages}"\nexec {sys.executable} -P -m echo_driver\n'
        )
        python.chmod(0o755)
        harness = {"kind": "acp", "argv": ["agent"], **fields.pop("harness", {})}
        spec = {"text": "\n".join(task), "harness": harness, **fields}
        (sandbox.state / "task.json").write_text(json.dumps(spec))
        sandbox.environment["SANDHERD_TOOLCHAINS"] = str(tmp_path / "toolchains")
        return sandbox

    return make


@pytest.fixture
async def relay(herd: Broker) -> AsyncIterator[Bus]:
    """A connection that delivers."""
    async with herd.bus(Principal.MESSAGE_RELAY) as bus:
        yield bus


def letter(content: str, kind: Any = "user_message") -> InboxMessage:
    now = datetime.now(UTC)
    return InboxMessage(
        message=new_name("msg"),
        project="default",
        sandbox="sbx-1",
        content=content,
        message_type=kind,
        sent_at=now,
        expires_at=now + timedelta(hours=1),
    )


def kinds(events: list[Any]) -> list[str]:
    beats = {"agent.heartbeat"}
    return [event.type.removeprefix("agent.") for event in events if event.type not in beats]


async def test_task_is_completed_and_reported(driven: Driven) -> None:
    """Messages, usage, session and the agent's file are published, with one end, and no process is left."""
    sandbox = driven("say hello", "usage 10 5 300", "print shown")
    assert await sandbox.run() == ExitCode.DRAINED
    events = await sandbox.events()
    assert kinds(events)[0] == "started"
    assert kinds(events)[-2:] == ["completed", "shutdown"]
    assert [kind for kind in kinds(events) if kind in {"completed", "failed"}] == ["completed"]
    completed = next(event for event in events if event.type == "agent.completed")
    assert (completed.data.session_id, completed.data.cost_micro_usd, completed.data.input_tokens) == (
        "session-1",
        300,
        10,
    )
    saved = [event.data for event in events if event.type == "agent.transcript_saved"]
    sessions = [await sandbox.taken(one.artifact) for one in saved if one.session_id == "session-1"]
    assert sessions == [b"turn 1\n", b"turn 1\nthe end\n"]
    (shown,) = [await sandbox.taken(one.artifact) for one in saved if one.session_id is None]
    assert shown == b"shown\n"


async def test_message_after_the_end_starts_another_turn(driven: Driven, relay: Bus, eventually: Any) -> None:
    """While the sandbox lingers with its agent, a message starts another turn; the agent is reported as waiting."""
    sandbox = await driven("say one", linger_seconds=600).start()
    await sandbox.event("waiting")
    assert (await sandbox.deliver(relay, letter("say two"))).outcome == "acknowledged"

    async def again() -> bool:
        return kinds(await sandbox.events()).count("waiting") == 2

    await eventually(again, "the second turn is over")
    sandbox.process.terminate()
    assert await sandbox.ended() == ExitCode.DRAINED
    events = await sandbox.events()
    assert [event.data.content for event in events if event.type == "agent.message"] == ["one", "two"]
    assert [kind for kind in kinds(events) if kind in {"completed", "failed"}] == ["completed"]
    assert events[-1].data.total_turns == 2


async def test_branch_is_saved_after_each_turn(driven: Driven, relay: Bus, tmp_path: Path, eventually: Any) -> None:
    """The branch is saved before the agent is reported as waiting, so that a user can look at it then."""
    origin = Origin(tmp_path / "origin")
    sandbox = driven("say one", linger_seconds=600, repository=origin.checkout())
    origin.by_mirror(sandbox)
    await sandbox.start()
    await sandbox.event("waiting")
    await sandbox.exec("sh", "-c", "echo 1 > new")
    assert (await sandbox.deliver(relay, letter("say two"))).outcome == "acknowledged"

    async def again() -> bool:
        return kinds(await sandbox.events()).count("waiting") == 2

    await eventually(again, "the second turn is over")
    events = await sandbox.events("branch_saved", "completed", "waiting", "failed")
    assert kinds(events) == ["branch_saved", "completed", "waiting", "branch_saved", "waiting"]
    assert [event.data.commits for event in events if event.type == "agent.branch_saved"] == [0, 1]
    sandbox.process.terminate()
    assert await sandbox.ended() == ExitCode.DRAINED
    assert len(await sandbox.events("branch_saved")) == 2


async def test_decision_overtakes_a_waiting_message(driven: Driven, relay: Bus) -> None:
    """An agent that waits for an approval accepts no message, but a decision and a probe overtake waiting messages."""
    sandbox = await driven("use Bash", harness={"approvals": {"otherwise": "ask"}}).start()
    requested = await sandbox.event("approval_requested")
    waiting = asyncio.create_task(sandbox.deliver(relay, letter("say later")))
    await sandbox.event("message")  # by which the agent reports that it has the message
    assert await sandbox.knock(relay) == b""
    content = json.dumps({"approval_id": requested.data.approval_id, "granted": False, "reason": "not now"})
    assert not waiting.done()
    assert (await sandbox.deliver(relay, letter(content, "approval"))).outcome == "acknowledged"
    assert (await waiting).outcome == "acknowledged"
    assert await sandbox.ended() == ExitCode.DRAINED
    contents = [event.data.content for event in await sandbox.events("message")]
    assert contents == ["holds say later", "Bash denied not now", "later"]


async def test_approval_is_withdrawn_with_its_turn(driven: Driven, relay: Bus) -> None:
    """The withdrawal of an approval with its interrupted turn is an event, and a later decision is refused."""
    sandbox = await driven("use Bash", "wait", harness={"approvals": {"otherwise": "ask"}}).start()
    requested = (await sandbox.event("approval_requested")).data
    await sandbox.deliver(relay, letter("stop that", "interrupt"))
    withdrawn = (await sandbox.event("approval_withdrawn")).data
    assert (withdrawn.approval_id, withdrawn.reason) == (requested.approval_id, "the agent's turn has ended")
    sandbox.process.terminate()
    await sandbox.ended()
    assert [kind for kind in kinds(await sandbox.events()) if "approval" in kind] == [
        "approval_requested",
        "approval_withdrawn",
    ]


async def test_approval_is_withdrawn_when_the_agent_dies(driven: Driven) -> None:
    """If the agent is killed, the withdrawal of its approval is published before the end of the attempt."""
    sandbox = await driven("use Bash", harness={"approvals": {"otherwise": "ask"}}).start()
    await sandbox.event("approval_requested")
    for process in psutil.Process(sandbox.process.pid).children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if "echo_driver" in process.cmdline():
                process.kill()
    assert await sandbox.ended() == ExitCode.DRAINED
    contents = kinds(await sandbox.events())
    assert contents.index("approval_requested") < contents.index("approval_withdrawn") < contents.index("failed")


async def test_approval_survives_a_stopped_worker(driven: Driven) -> None:
    """An approval is not withdrawn when the host stops the worker, because the next attempt may repeat it."""
    sandbox = await driven("use Bash", "wait", harness={"approvals": {"otherwise": "ask"}}).start()
    await sandbox.event("approval_requested")
    sandbox.process.terminate()
    assert await sandbox.ended() == ExitCode.DRAINED
    assert (await sandbox.event("failed")).data.error_type == "stopped"
    assert await sandbox.events("approval_withdrawn") == []


async def test_killed_driver_fails_the_attempt(driven: Driven) -> None:
    """If the driver is killed, a stream error and one failure with its signal are published."""
    sandbox = driven("say up", "spawn sleep 600", "die")
    assert await sandbox.run() == ExitCode.DRAINED
    events = await sandbox.events()
    assert "stream_error" in kinds(events)
    (failed,) = [event.data for event in events if event.type == "agent.failed"]
    assert (failed.error_type, failed.signal) == ("signal", 9)


async def test_missing_sdk_is_a_start_error(driven: Driven) -> None:
    """The failure of a missing SDK names the command that installs it."""
    sandbox = driven("say hello")
    sandbox.environment["SANDHERD_TOOLCHAINS"] = "/nowhere"
    assert await sandbox.run() == ExitCode.DRAINED
    (failed,) = [event.data for event in await sandbox.events() if event.type == "agent.failed"]
    assert failed.error_type == "start"
    assert "`sandherd harness install acp`" in failed.error


@pytest.mark.parametrize(("use", "resumed"), [("restore", True), ("offer", False)])
async def test_next_attempt_resumes_the_session(driven: Driven, tmp_path: Path, use: str, resumed: bool) -> None:
    """If the work tree is restored, the agent gets the lost attempt's session; otherwise it begins a new one."""
    sandbox = driven("say one", "fail it is not my day")
    assert await sandbox.run() == ExitCode.DRAINED
    saved = next(one.data for one in await sandbox.events("transcript_saved") if one.data.session_id)
    previous = Previous(
        attempt=1,
        sandbox=sandbox.name,
        session=StoredSession(session_id=saved.session_id, artifact=saved.artifact),
        use=use,  # type: ignore[arg-type]  # a value from this test's parameters
    )
    sandbox = _new_sandbox(sandbox, tmp_path / "second")
    driven("say two")
    (sandbox.state / "previous.json").write_text(previous.model_dump_json())
    variables = {"SANDHERD_ATTEMPT": "2", "SANDHERD_PREVIOUS_FILE": str(sandbox.state / "previous.json")}
    assert await sandbox.run(**variables) == ExitCode.DRAINED
    contents = [event.data.content for event in await sandbox.events("message")]
    assert contents == (["resumed session-1: turn 1\n", "two"] if resumed else ["two"])


@pytest.mark.parametrize(
    ("use", "goes_on_from"),
    [("restore", "session-1: turn 1\nthe end\n"), ("offer", "session-0: an earlier task\n")],
)
async def test_attempt_after_a_resumed_one_uses_the_latest_session(
    driven: Driven, tmp_path: Path, use: str, goes_on_from: str
) -> None:
    """The session of the last attempt is used if it is restored; otherwise the one that the task resumed."""
    sandbox = driven("say one", "fail it is not my day")
    earlier = await sandbox.put_aside(b"an earlier task\n")
    known = {"task": "task-0", "attempt": 1, "sandbox": sandbox.name, "harness": "acp", "session_id": "session-0"}
    resume = Resume.model_validate({**known, "transcript": earlier, "fork": True}).model_dump()
    assert await sandbox.run() == ExitCode.DRAINED
    saved = [one.data for one in await sandbox.events("transcript_saved") if one.data.session_id][-1]
    session = StoredSession(session_id=saved.session_id, artifact=saved.artifact)
    previous = Previous(attempt=1, sandbox=sandbox.name, session=session, use=use)  # type: ignore[arg-type]  # one of both
    sandbox = _new_sandbox(sandbox, tmp_path / "second")
    driven("say two", resume=resume)
    (sandbox.state / "previous.json").write_text(previous.model_dump_json())
    variables = {"SANDHERD_ATTEMPT": "2", "SANDHERD_PREVIOUS_FILE": str(sandbox.state / "previous.json")}
    assert await sandbox.run(**variables) == ExitCode.DRAINED
    contents = [event.data.content for event in await sandbox.events("message")]
    assert contents == [f"resumed {goes_on_from}", "two"]


def _new_sandbox(sandbox: Any, home: Path) -> Any:
    """A new sandbox beside the first."""
    sandbox.name = new_name("sbx")
    sandbox.work, sandbox.state = home / "work", home / "state"
    sandbox.work.mkdir(parents=True)
    sandbox.state.mkdir()
    return sandbox
