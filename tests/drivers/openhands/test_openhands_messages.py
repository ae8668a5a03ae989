"""Messages, interrupts and approvals of the real OpenHands agent during its work."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from tests.drivers.driver_process import DriverProcess
from tests.drivers.openhands.conftest import StartOpenHands, appears, processes, runs
from tests.models.openai import OpenAIModel, Request
from tests.models.openai_answers import Answer, Call, calls, writes

pytestmark = [pytest.mark.agents, pytest.mark.timeout(900)]  # a start is seconds of work for a whole core

LATE = {"message": "late", "message_type": "user_message", "content": "Too late.", "expires_at": 1}
WAIT = "touch began; until test -e go; do sleep 0.02; done; echo over"


def texts(request: Request) -> list[str]:
    """The text of the last message."""
    return [part["text"] for part in request.messages[-1]["content"]]


def answered(request: Request) -> bool:
    """Whether each call is followed by its result, as a model's protocol requires."""
    waiting: set[str] = set()
    for message in request.messages:
        if message["role"] == "tool":
            waiting.remove(message["tool_call_id"])
        else:
            if waiting:
                return False
            waiting = {call["id"] for call in message.get("tool_calls") or ()}
    return not waiting


def receipts(driver: DriverProcess) -> list[str]:
    return [line["message"] for line in driver.emitted("driver.taken")]


def refused(driver: DriverProcess) -> list[str]:
    return [line["message"] for line in driver.emitted("driver.refused")]


async def test_messages_reach_the_model_in_the_running_turn(openhands: StartOpenHands, model: OpenAIModel) -> None:
    """Messages sent during a command or a model call arrive once, in order, acknowledged, with their sender.

    A message that has expired by then is refused.
    """
    thinking = asyncio.Event()
    model.script(calls("terminal", command=WAIT), writes("First answer.", gate=thinking), writes("Second answer."))
    driver = await openhands("Wait.")
    await appears(driver.work_dir / "began")
    sent = [
        driver.message("Look at the tests too."),
        driver.message("You drift.", "guardian_nudge"),
        driver.message("The disk is full.", "system"),
        driver.message("[FROM agent-2] Hello.", "user_message", "agent-2"),
    ]
    driver.send("message", message=sent[0], message_type="user_message", content="Look at the tests too.")
    driver.send("message", **LATE)
    driver.send("nonsense")
    await driver.received("agent.error", phase="driver")  # so it has read all earlier commands
    assert receipts(driver) == [], "nothing is taken before the model can be shown it"
    (driver.work_dir / "go").touch()
    second = await model.requested(2)
    assert texts(second) == [
        "Look at the tests too.",
        "[GUARDIAN INTERVENTION] You drift.",
        "[SYSTEM NOTE] The disk is full.",
        "[FROM agent-2] Hello.",
    ]
    assert answered(second)
    last = driver.message("One more thing.")
    driver.send("message", message=last, message_type="user_message", content="One more thing.")
    driver.send("nonsense")
    await driver.received("agent.error", phase="driver", count=2)
    thinking.set()
    third = await model.requested(3)
    assert third.roles[-2:] == ["assistant", "user"], "it stands behind the answer that was no answer to it"
    assert texts(third) == ["One more thing."]
    result = await driver.received("driver.result")
    assert (result["turns"], result["final_output"]) == (1, "Second answer.")
    assert (receipts(driver), refused(driver)) == ([*sent, last], ["late"])
    driver.send("message", message=last, message_type="user_message", content="One more thing.")
    await driver.received("driver.taken", message=last, count=2)
    assert await driver.stop() == 0
    assert len(model.requests) == 3, "a repeated message has its receipt again, and is not sent to the model again"


async def test_interrupted_turn_stops_and_session_continues(openhands: StartOpenHands, model: OpenAIModel) -> None:
    """An interrupt stops a command, a model call or a turn before its begin; messages sent meanwhile are not lost."""
    never = asyncio.Event()
    model.script(
        calls("terminal", command="sleep 3601"),
        calls("terminal", command="sleep 3602"),
        writes("Never said.", gate=never),
        writes("Here I am."),
    )
    driver = await openhands("Sleep.")
    driver.send("interrupt")
    first = await driver.received("agent.turn_completed", turn=1)
    assert first["stop_reason"] == "interrupted"
    assert model.requests == []

    driver.message("Now sleep.")
    await _stop_command(driver, 3601, turn=2)
    assert _stored(driver)["execution_status"] == "paused", "as the SDK itself pauses a conversation that may go on"
    assert {"subtype": "interrupted"} in [line["metadata"] for line in driver.emitted("agent.system_message")]
    held = await _stop_command_with_a_word_waiting(driver, model)
    assert "Wake up." in texts(held)[-1]
    assert answered(held)

    driver.send("interrupt")
    await driver.received("agent.turn_completed", turn=4, stop_reason="interrupted")
    assert driver.emitted("driver.result") == [], "no turn was the task's end so far"
    driver.send("interrupt")
    await driver.received("driver.turn", state="idle", turn=4, count=2)
    words = driver.message("Are you there?", "interrupt")
    # Its repetition stops nothing again.
    driver.send("message", message=words, message_type="interrupt", content="Are you there?")
    result = await driver.received("driver.result")
    assert (result["error_type"], result["turns"], result["final_output"]) == (None, 5, "Here I am.")
    assert all(answered(request) for request in model.requests)
    assert _open_calls(driver) == set()


def _stored(driver: DriverProcess) -> dict[str, Any]:
    """The state of the conversation in its transcript."""
    transcript = Path(driver.emitted("driver.transcript")[-1]["path"])
    state: dict[str, Any] = json.loads(transcript.read_text().split("\n")[0])
    return state


async def _stop_command(driver: DriverProcess, seconds: int, turn: int) -> None:
    await runs(driver, f"sleep {seconds}")
    driver.send("interrupt")
    await driver.received("driver.turn", state="idle", turn=turn)
    assert not any(f"sleep {seconds}" in line for line in processes(driver)), (
        "the command is gone when the turn is over"
    )


async def _stop_command_with_a_word_waiting(driver: DriverProcess, model: OpenAIModel) -> Request:
    driver.message("Sleep again.")
    await runs(driver, "sleep 3602")
    waiting = driver.message("Wake up.")
    driver.send("interrupt")
    await driver.received("driver.taken", message=waiting)
    await driver.received("driver.turn", state="running", turn=4)
    return await model.requested(3)


def _open_calls(driver: DriverProcess) -> set[str]:
    opened = {line["tool_use_id"] for line in driver.emitted("agent.tool_use")}
    return opened - {line["tool_use_id"] for line in driver.emitted("agent.tool_completed")}


ASK = {"tools": {"file_editor": "ask"}, "otherwise": "allow"}


def create(path: Path) -> Call:
    return Call("file_editor", {"command": "create", "path": str(path), "file_text": "made\n"})


async def test_approvals_are_requested_per_call(openhands: StartOpenHands, model: OpenAIModel) -> None:
    """Each call of a response needs its own approval; messages wait for decisions; an interrupt denies all calls."""
    model.script(lambda request: Answer(calls=tuple(create(work / name) for name in ("yes", "no"))))
    model.script(lambda request: Answer(calls=(create(work / "never"),)), writes("Well."))
    driver = await openhands("Write.", approvals=ASK)
    work = driver.work_dir
    await driver.received("driver.ask", 2)
    word = driver.message("Be quick.")
    driver.send("nonsense")
    await driver.received("agent.error", phase="driver")
    requested = {ask["input"]["path"].rpartition("/")[2]: ask for ask in driver.emitted("driver.ask")}
    assert requested["yes"]["tool"] == "file_editor"
    assert not (work / "yes").exists()
    _decide(driver, requested["no"], granted=False, reason="that file is not yours")
    _decide(driver, requested["yes"], granted=True)
    second = await model.requested(2)
    assert (work / "yes").read_text() == "made\n"
    assert not (work / "no").exists()
    assert second.roles[-3:] == ["tool", "tool", "user"]
    assert "that file is not yours" in second.words
    assert texts(second) == ["Be quick."]
    assert receipts(driver) == [word]
    assert outcomes(driver) == [(False, "ok"), (True, "refused")]

    await driver.received("driver.ask", 3)
    driver.send("interrupt")
    await driver.received("driver.turn", state="idle", turn=1)
    driver.message("Leave it.")
    await driver.received("driver.result", stop_reason="finished")
    assert (driver.emitted("agent.tool_completed")[-1]["outcome"], (work / "never").exists()) == ("cancelled", False)
    assert all(answered(request) for request in model.requests)


def outcomes(driver: DriverProcess) -> list[tuple[bool, str]]:
    return [(line["is_error"], line["outcome"]) for line in driver.emitted("agent.tool_result")]


def _decide(driver: DriverProcess, ask: dict[str, Any], *, granted: bool, reason: str | None = None) -> None:
    driver.send("decide", approval_id=ask["approval_id"], granted=granted, reason=reason, by_user=True)
