"""Turns of the real OpenHands agent: tools work on the real work tree, and each action is reported once."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.drivers.driver_process import DriverProcess
from tests.drivers.openhands.conftest import INPUT_PRICE, OUTPUT_PRICE, StartOpenHands, processes
from tests.models.openai import OpenAIModel
from tests.models.openai_answers import Answer, Call, Usage, calls, writes

pytestmark = [pytest.mark.agents, pytest.mark.timeout(900)]  # a start is seconds of work for a whole core

USAGE = Usage(prompt_tokens=1000, completion_tokens=50, cached_tokens=200)
TOKENS = {"input_tokens": 800, "output_tokens": 50, "cache_read_tokens": 200, "cache_write_tokens": 0}
COST = 1000 * INPUT_PRICE + 50 * OUTPUT_PRICE
TOOL_SERVER = {"command": sys.executable, "args": [str(Path(__file__).parents[1] / "claude" / "mcp_server.py")]}


def emitted_in_turn(driver: DriverProcess, turn: int) -> list[str]:
    return [line["type"] for line in driver.lines if line["data"].get("turn") == turn]


def tool(driver: DriverProcess, type: str, call: str) -> dict[str, Any]:
    [found] = [line for line in driver.emitted(type) if line["tool_use_id"] == call]
    return found


async def test_task_is_completed_and_reported(openhands: StartOpenHands, model: OpenAIModel) -> None:
    """Tools, texts, thoughts, usage, output and transcript are reported, also in a second turn."""
    write = Call("terminal", {"command": "echo one > notes.txt && echo written && ls no-such-file"}, "call_write")
    model.script(
        lambda request: Answer(text="I begin.", thinking="How?", calls=(write,), usage=USAGE),
        lambda request: Answer(calls=(edit(request.words),), usage=USAGE),
        calls("ask_human", question="this?", usage=USAGE),
        calls("think", thought="That will do.", usage=USAGE),
        calls("finish", message="All done.", usage=USAGE),
        writes("You are welcome.", usage=USAGE),
    )
    driver = await openhands("Write notes.", mcp_servers={"herd": TOOL_SERVER})
    result = await driver.received("driver.result")
    await driver.received("driver.turn", turn=1, state="idle")
    ready = driver.emitted("driver.ready")[0]
    assert (ready["model"], ready["version"][:5]) == ("openai/scripted", "1.58.")
    await driver.until(lambda: driver.output.count("written") > 1, "what was printed comes by another pipe")
    _the_tools_have_worked(driver)
    _the_text_is_emitted(driver)
    _the_task_is_assessed(driver, result)
    _the_transcript_is_whole(driver, ["Write notes.", "written", "All done."])

    driver.message("Thank you.", origin="user")
    await driver.received("driver.turn", turn=2, state="idle")
    assert "Thank you." in model.requests[-1].words
    assert [line["cost_micro_usd"] for line in driver.emitted("agent.usage")] == [5 * COST, COST]
    assert driver.emitted("agent.usage")[1].items() >= TOKENS.items()
    assert emitted_in_turn(driver, 2)[:2] == ["driver.turn", "agent.turn_started"]
    begun = [(line["prompt_preview"], line["origin"]) for line in driver.emitted("agent.turn_started")]
    assert begun == [("Write notes.", "task"), ("Thank you.", "user")]
    assert len(driver.emitted("driver.result")) == 1

    assert processes(driver), "the terminal is still there"
    assert await driver.stop() == 0
    assert processes(driver) == []
    assert {path.name for path in driver.home.iterdir()} == {"work", "state"}
    _the_transcript_is_whole(driver, ["Thank you.", "You are welcome."])
    assert model.aside == []


def edit(words: str) -> Call:
    """A call that edits the file which the terminal has written."""
    assert "written" in words, "the model is shown what the command has printed"
    where = next(part for part in words.replace("]", " ").replace("\\n", " ").split() if part.endswith("/work"))
    given = {"command": "str_replace", "path": f"{where}/notes.txt", "old_str": "one", "new_str": "two"}
    return Call("file_editor", given, "call_edit")


def _the_tools_have_worked(driver: DriverProcess) -> None:
    assert (driver.work_dir / "notes.txt").read_text() == "two\n"
    assert [path.name for path in driver.work_dir.iterdir()] == ["notes.txt"]
    assert {path.name for path in driver.home.iterdir()} == {"work", "state"}, "nothing of the SDK's lies about"
    assert [line["tool"] for line in driver.emitted("agent.tool_use")] == ["terminal", "file_editor", "ask_human"]
    assert "yes to this?" in driver.emitted("agent.tool_result")[2]["result"]
    ran = tool(driver, "agent.tool_result", "call_write")
    assert "written" in ran["result"]
    assert (ran["is_error"], ran["outcome"], ran["exit_code"]) == (False, "failed", 2)
    completed = tool(driver, "agent.tool_completed", "call_write")
    assert completed["tool_response"]["exit_code"] == 2
    assert completed["tool_input"] == tool(driver, "agent.tool_use", "call_write")["input"]
    assert completed["duration_ms"] > 0
    assert "$ echo one" in driver.output
    assert driver.output.count("written") == 2, "in the command, and in what it printed"
    assert "WARNING" not in driver.output


def _the_text_is_emitted(driver: DriverProcess) -> None:
    assert [line["content"] for line in driver.emitted("agent.message")] == ["I begin.", "All done."]
    assert [line["content"] for line in driver.emitted("agent.thinking")] == ["How?", "That will do."]
    assert len(driver.emitted("agent.assistant_message")) == 5
    calls = ("agent.model_call_started", "agent.model_call_completed")
    begun, over = ([line["call_id"] for line in driver.emitted(kind)] for kind in calls)
    # Text in the shape of a call after a thought is not published as a call of the model.
    assert (begun, len(set(begun))) == (over, 4)
    turn = emitted_in_turn(driver, 1)
    assert turn[:2] == ["driver.turn", "agent.turn_started"]
    assert turn[-3:] == ["agent.usage", "agent.turn_completed", "driver.turn"]


def _the_task_is_assessed(driver: DriverProcess, result: dict[str, Any]) -> None:
    session = driver.emitted("driver.ready")[0]["session_id"]
    assert result == {
        "error_type": None,
        "error": "",
        "signal": None,
        "turns": 1,
        "final_output": "All done.",
        "stop_reason": "finished",
        "session_id": session,
    }
    usage = driver.emitted("agent.usage")[0]
    assert usage.items() >= {name: 5 * figure for name, figure in TOKENS.items()}.items()


def _the_transcript_is_whole(driver: DriverProcess, words: list[str]) -> None:
    transcript = driver.emitted("driver.transcript")[-1]
    text = Path(transcript["path"]).read_text()
    assert all(word in text for word in words)
    assert [json.loads(line)["kind"] for line in text.splitlines()][:2] == ["ConversationState", "SystemPromptEvent"]
    assert "sk-scripted" not in text
    assert transcript["session_id"] == driver.emitted("driver.ready")[0]["session_id"]
