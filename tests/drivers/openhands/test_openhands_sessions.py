"""Sessions of the real OpenHands agent: stopped cleanly, and resumed from a transcript."""

import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.drivers.driver_process import DriverProcess
from tests.drivers.openhands.conftest import (
    INPUT_PRICE,
    OUTPUT_PRICE,
    StartOpenHands,
    appears,
    processes,
    with_terminal,
)
from tests.models.openai import OpenAIModel, Request
from tests.models.openai_answers import Answer, Call, calls, writes

pytestmark = [pytest.mark.agents, pytest.mark.timeout(900)]  # a start is seconds of work for a whole core

COST = 100 * INPUT_PRICE + 20 * OUTPUT_PRICE
STUBBORN = "trap '' INT TERM HUP; touch {}; while true; do sleep 0.1; done"


def stored(driver: DriverProcess, path: Path) -> dict[str, Any]:
    """A copy of the transcript, as the worker stores it, and the options that resume it."""
    transcript = driver.emitted("driver.transcript")[-1]
    shutil.copy(transcript["path"], path)
    return {"session_id": transcript["session_id"], "transcript": str(path), "fork": False}


async def test_session_is_stopped_resumed_and_forked(
    openhands: StartOpenHands, model: OpenAIModel, tmp_path: Path
) -> None:
    """The session is stopped within a turn without a leftover process, resumed elsewhere, and charged once."""
    apart = f'setsid nohup bash -c "{STUBBORN.format("apart")}" >/dev/null 2>&1 & echo started'
    command = Call("terminal", {"command": STUBBORN.format("begun")}, "call_unanswered")
    model.script(with_terminal(model, calls("terminal", command=apart)), Answer(calls=(command,)))
    first = await openhands("Remember the heron.")
    await appears(first.work_dir / "apart")
    await appears(first.work_dir / "begun")
    await _stop_in_turn(first, len(model.requests))

    model.script(writes("I go on."))
    second = await openhands("Go on.", resume=stored(first, tmp_path / "first.jsonl"))
    result = await second.received("driver.result", stop_reason="finished")
    assert result["session_id"] == first.emitted("driver.ready")[0]["session_id"]
    _goes_on(second, model.requests[-1], ["Remember the heron.", "started", "Go on."])
    assert model.requests[-1].roles[-2:] == ["tool", "user"]
    assert model.requests[-1].messages[-2]["tool_call_id"] == "call_unanswered"
    assert not (second.work_dir / "begun").exists(), "a call that had no answer is not made again"
    await second.received("driver.turn", state="idle")
    await second.kill()

    model.script(writes("I, too."))
    forked = stored(second, tmp_path / "second.jsonl") | {"fork": True}
    third = await openhands("And you?", resume=forked)
    result = await third.received("driver.result", final_output="I, too.")
    assert result["session_id"] == third.emitted("driver.ready")[0]["session_id"] != forked["session_id"]
    _goes_on(third, model.requests[-1], ["Remember the heron.", "I go on.", "And you?"])


async def test_session_survives_a_kill_during_its_turn(
    openhands: StartOpenHands, model: OpenAIModel, tmp_path: Path
) -> None:
    """The transcript so far suffices to resume; a call without a result then has one."""
    count = with_terminal(model, calls("terminal", command="echo two herons"))
    model.script(count, calls("terminal", command=STUBBORN.format("begun")))
    first = await openhands("Count the herons.")
    await appears(first.work_dir / "begun")

    def written() -> bool:
        named = first.emitted("driver.transcript")
        return bool(named) and "touch begun" in Path(named[-1]["path"]).read_text()

    await first.until(written, "the transcript was not written in the middle of the turn")
    assert not any(line["keep"] for line in first.emitted("driver.transcript"))
    first.process.kill()
    await first.ended()
    model.script(writes("There were two."))
    second = await openhands("Go on.", resume=stored(first, tmp_path / "first.jsonl"))
    await second.received("driver.result", stop_reason="finished")
    _goes_on(second, model.requests[-1], ["Count the herons.", "two herons", "Go on."])
    assert model.requests[-1].roles[-2:] == ["tool", "user"]


async def test_sigterm_during_turn_ends_cleanly(openhands: StartOpenHands, model: OpenAIModel) -> None:
    """A SIGTERM to the whole group, as the worker sends it, still yields the outcome and the transcript."""
    model.script(calls("terminal", command=STUBBORN.format("begun")))
    driver = await openhands("Count the herons.")
    await appears(driver.work_dir / "begun")
    driver.send("stop", grace=2.8)
    os.killpg(driver.process.pid, signal.SIGTERM)
    assert await driver.ended() == 0
    assert driver.emitted("driver.result")[0]["error_type"] == "stopped"
    assert "Count the herons." in Path(driver.emitted("driver.transcript")[-1]["path"]).read_text()
    assert processes(driver) == []


async def _stop_in_turn(driver: DriverProcess, answers: int) -> None:
    """Check that commands that ignore signals are ended, the turn is charged, and waiting messages are refused."""
    message = driver.message("One more thing.")
    assert await driver.stop() == 0
    assert processes(driver) == []
    result = driver.emitted("driver.result")[0]
    assert (result["error_type"], result["turns"]) == ("stopped", 1)
    assert [line["message"] for line in driver.emitted("driver.refused")] == [message]
    assert [line["cost_micro_usd"] for line in driver.emitted("agent.usage")] == [answers * COST]
    assert {line["tool_use_id"] for line in driver.emitted("agent.tool_use")} == {
        line["tool_use_id"] for line in driver.emitted("agent.tool_completed")
    }


def _goes_on(driver: DriverProcess, shown: Request, words: list[str]) -> None:
    assert [word for word in words if word not in shown.words] == []
    assert [line["cost_micro_usd"] for line in driver.emitted("agent.usage")] == [COST]
    assert driver.emitted("agent.tool_use") == [], "what was said before is not said again"


async def test_stop_before_the_agent_has_started_ends_it(openhands: StartOpenHands, model: OpenAIModel) -> None:
    """A closed input or an immediate stop waits for nothing; no process is left."""
    driver = await openhands("Begin.")
    driver.close_input()
    assert await driver.ended() == 0
    assert driver.emitted("driver.result")[0]["error_type"] == "stopped"
    assert processes(driver) == []
