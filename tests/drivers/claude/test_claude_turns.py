"""Turns of the real Claude agent: its actions become events, and messages reach the model."""

import asyncio
import json
import time

import pytest

from tests.drivers.claude.conftest import StartClaude, appears
from tests.drivers.driver_process import DriverProcess
from tests.models.anthropic import AnthropicModel, Request
from tests.models.anthropic_answers import Answer, Call, Text, Thinking, calls, writes

pytestmark = pytest.mark.agents

CALLS = ("agent.model_call_started", "agent.model_call_completed")
SLEEPS = 'touch begun; python3 -c "import time; time.sleep(60)"; touch woken'


def emitted_types(driver: DriverProcess) -> list[str]:
    """The types of the emitted events, without notices, prices, model calls and named transcripts."""
    left_out = {"agent.system_message", "agent.usage", "driver.ready", *CALLS}
    return [line["type"] for line in driver.lines if line["type"] not in left_out and line["data"].get("keep", True)]


async def test_every_block_becomes_its_event(claude: StartClaude, model: AnthropicModel) -> None:
    """Thoughts, texts and real calls of Write, Edit and Bash with results are events, before outcome and idle."""
    content = {"file_path": "a.txt", "content": "1\n"}
    model.script(
        Answer(blocks=(Thinking("a file"), Text("I write it"), Call("Write", content))),
        calls("Edit", file_path="a.txt", old_string="1", new_string="2"),
        calls("Bash", command="cat a.txt; echo shown >&2"),
        writes("done"),
    )
    driver = await claude("make a.txt")
    await driver.received("driver.turn", state="idle")
    assert (driver.work_dir / "a.txt").read_text() == "2\n"
    tool = ["agent.assistant_message", "agent.tool_completed", "agent.tool_result"]
    assert emitted_types(driver) == [
        *("driver.turn", "agent.turn_started", "agent.user_message"),
        *("agent.thinking", "agent.message", "agent.tool_use", *tool),
        *("agent.tool_use", *tool, "agent.tool_use", *tool),
        *("agent.message", "agent.assistant_message", "agent.turn_completed"),
        *("driver.transcript", "driver.result", "driver.turn"),
    ]
    assert [line["tool"] for line in driver.emitted("agent.tool_completed")] == ["Write", "Edit", "Bash"]
    assert driver.emitted("agent.tool_result")[2]["result"] == "2\nshown"
    assert [line["block_count"] for line in driver.emitted("agent.assistant_message")] == [3, 1, 1, 1]
    begun, over = ([line["call_id"] for line in driver.emitted(kind)] for kind in CALLS)
    assert (begun, len(set(begun))) == (over, 4)
    assert {line["turn"] for line in driver.emitted("agent.message")} == {1}
    assert driver.emitted("agent.turn_started") == [{"turn": 1, "prompt_preview": "make a.txt", "origin": "task"}]
    # Output comes by another pipe than events.
    await driver.until(lambda: driver.output.splitlines()[-1:] == ["shown"], "the command's output was not shown last")
    result = driver.emitted("driver.result")[0]
    ready = driver.emitted("driver.ready")[0]
    assert result == {
        "error_type": None,
        "error": "",
        "signal": None,
        "turns": 1,
        "final_output": "done",
        "stop_reason": "end_turn",
        "session_id": ready["session_id"],
    }
    assert ready["version"]
    assert await driver.stop() == 0


async def test_message_reaches_the_model_within_the_turn(claude: StartClaude, model: AnthropicModel) -> None:
    """The next request has it with its sender; the receipt comes when the model gets it."""
    model.script(calls("Bash", command="until test -e go; do sleep 0.05; done"), writes("heard you"))
    driver = await claude("work")
    await driver.received("agent.tool_use")
    message = driver.message("mind the gap", "guardian_nudge", "monitor")
    assert driver.emitted("driver.taken") == []
    (driver.work_dir / "go").touch()
    assert await driver.received("driver.taken") == {"message": message}
    assert "[GUARDIAN INTERVENTION] mind the gap" in (await model.requested(2)).words
    await driver.received("driver.turn", state="idle")
    assert len(driver.emitted("driver.result")) == 1
    assert [line["turn"] for line in driver.emitted("agent.turn_completed")] == [1]


async def test_message_that_expires_behind_a_tool_is_withdrawn(claude: StartClaude, model: AnthropicModel) -> None:
    """The program had the message, but the model never gets it; one that has already expired is not delivered."""
    model.script(calls("Bash", command="until test -e go; do sleep 0.05; done"), writes("nobody spoke"))
    driver = await claude("work")
    await driver.received("agent.tool_use")
    fields = {"message_type": "user_message", "content": "QUITE LATE", "sender_id": None}
    driver.send("message", message="old", expires_at=time.time() - 1, **fields)
    driver.send("message", message="aging", expires_at=time.time() + 1, **fields)
    driver.send("message", message="young", **fields, expires_at=time.time() + 3600)
    await driver.received("driver.refused", message="old")
    refused = await driver.received("driver.refused", message="aging")
    assert "expired" in refused["reason"]
    (driver.work_dir / "go").touch()
    assert await driver.received("driver.taken") == {"message": "young"}
    assert (await model.requested(2)).words.count("QUITE LATE") == 1
    await driver.received("driver.result", error_type=None)


async def test_message_blocked_by_hook_is_refused_each_time(claude: StartClaude, model: AnthropicModel) -> None:
    """The model has not seen the message, so it is refused however often it comes, and the session continues."""

    def prepare(driver: DriverProcess) -> None:
        settings = driver.work_dir / ".claude" / "settings.json"
        settings.parent.mkdir()
        hook = {"type": "command", "command": "if grep -q UNWANTED; then exit 2; fi"}
        settings.write_text(json.dumps({"hooks": {"UserPromptSubmit": [{"hooks": [hook]}]}}))

    model.script(writes("one"), writes("two"))
    driver = await claude("first", prepare=prepare)
    await driver.received("driver.turn", state="idle", turn=1)
    fields = {"message_type": "user_message", "content": "UNWANTED", "sender_id": None}
    for count in (1, 2):
        driver.send("message", message="msg-1", **fields)
        await driver.received("driver.refused", count, message="msg-1")
    assert driver.emitted("driver.taken") == []
    wanted = driver.message("second")
    await driver.received("driver.taken", message=wanted)
    await driver.received("agent.message", content="two")
    assert not any("UNWANTED" in request.words for request in model.requests)


async def test_messages_after_the_end_are_follow_ups(claude: StartClaude, model: AnthropicModel) -> None:
    """Each message is a separate turn, in order; the outcome is reported once. A repeated message is no turn."""
    model.script(writes("one"), writes("two"), writes("three"))
    driver = await claude("first")
    await driver.received("driver.turn", state="idle", turn=1)
    message = driver.message("second")
    await driver.received("driver.turn", state="idle", turn=2)
    driver.send("message", message=message, message_type="user_message", content="second", sender_id=None)
    assert await driver.received("driver.taken", 2) == {"message": message}
    driver.message("/clear", "system")
    await driver.received("driver.turn", state="idle", turn=3)
    assert [line["content"] for line in driver.emitted("agent.message")] == ["one", "two", "three"]
    assert "second" in model.requests[2].words
    assert "/clear" in model.requests[2].words
    assert len(driver.emitted("driver.result")) == 1


async def test_interrupt_stops_a_command_and_keeps_the_session(claude: StartClaude, model: AnthropicModel) -> None:
    """The command is killed, the task has no outcome yet, and the next message continues the conversation."""
    model.script(calls("Bash", command=SLEEPS), writes("what now?"))
    driver = await claude("work")
    await appears(driver.work_dir / "begun")
    driver.send("interrupt")
    await driver.received("driver.turn", state="idle", turn=1)
    result = driver.emitted("agent.tool_result")[0]
    assert (result["is_error"], result["outcome"]) == (True, "cancelled")
    assert driver.emitted("agent.turn_completed")[0]["stop_reason"] == "interrupted"
    assert driver.emitted("driver.result") == []
    driver.message("go on")
    await driver.received("driver.turn", state="idle", turn=2)
    assert "begun" in model.requests[1].words
    assert driver.emitted("driver.result")[0]["error_type"] is None
    assert not (driver.work_dir / "woken").exists()


async def test_interrupt_stops_the_model(claude: StartClaude, model: AnthropicModel) -> None:
    """The interrupt comes while the model streams its reply."""
    model.script(writes("one two three", gate=asyncio.Event()), writes("better"))
    driver = await claude("talk")
    await model.requested(1)
    driver.send("interrupt")
    await driver.received("driver.turn", state="idle", turn=1)
    driver.message("go on")
    await driver.received("agent.message", content="better")
    await driver.received("driver.result", error_type=None)


async def test_interrupt_with_its_message_stops_the_turn(claude: StartClaude, model: AnthropicModel) -> None:
    """The message and the interrupt come together, before the turn begins."""
    endless = writes("never ending", gate=asyncio.Event())

    def step(requested: Request) -> Answer:
        return writes("better") if "go on" in requested.words else endless

    model.script(writes("ready"), step, step)
    driver = await claude("begin")
    await driver.received("driver.turn", state="idle", turn=1)
    driver.message("do something endless")
    driver.send("interrupt")
    await driver.received("driver.turn", state="idle", turn=2)
    driver.message("go on")
    await driver.received("agent.message", content="better")


async def test_interrupt_while_idle_is_harmless(claude: StartClaude, model: AnthropicModel) -> None:
    """The driver reports idle again, and the next turn completes."""
    model.script(writes("one"), writes("two"))
    driver = await claude("begin")
    await driver.received("driver.turn", state="idle", turn=1)
    driver.send("interrupt")
    await driver.received("driver.turn", 2, state="idle", turn=1)
    driver.message("go on")
    await driver.received("driver.turn", state="idle", turn=2)
    assert [line["stop_reason"] for line in driver.emitted("agent.turn_completed")] == ["end_turn", "end_turn"]


async def test_interrupt_with_message_stops_only_earlier_work(claude: StartClaude, model: AnthropicModel) -> None:
    """Messages that waited are not lost; the interrupt's message is a turn of its own and completes."""

    def step(requested: Request) -> Answer:
        return writes("better") if "do this" in requested.words else calls("Bash", command=SLEEPS)

    model.script(*[step] * 4)
    driver = await claude("work")
    await appears(driver.work_dir / "begun")
    waiting = driver.message("while you are at it")
    driver.send("interrupt")
    driver.send("interrupt")
    words = driver.message("do this instead", "interrupt")
    await driver.received("driver.result", error_type=None, final_output="better")
    assert [line["message"] for line in driver.emitted("driver.taken")] == [waiting, words]
    assert "while you are at it" in model.requests[-1].words
    assert {line["stop_reason"] for line in driver.emitted("agent.turn_completed")[:-1]} == {"interrupted"}
    assert not (driver.work_dir / "woken").exists()


async def test_task_is_not_done_while_a_subagent_runs(claude: StartClaude, model: AnthropicModel) -> None:
    """The first turn is over; the subagent's result begins a turn by itself, whose text is the outcome."""
    gate = asyncio.Event()

    def step(requested: Request) -> Answer:
        if "task-notification" in requested.words:
            return writes("so that is it")
        launched = "Async agent launched" in requested.words
        return writes("I wait") if launched else writes("seen", gate=gate)

    task = {"description": "look", "prompt": "look", "subagent_type": "general-purpose"}
    model.script(Answer(blocks=(Call("Task", task),)), *[step] * 4)
    driver = await claude("work")
    await driver.received("agent.turn_completed")
    assert driver.emitted("driver.result") == []
    gate.set()
    result = await driver.received("driver.result")
    assert (result["final_output"], result["turns"]) == ("so that is it", 2)
    await driver.received("driver.turn", state="idle", turn=2)
    assert [line["state"] for line in driver.emitted("driver.turn")] == ["running", "running", "idle"]


async def test_very_long_message_is_truncated_in_event_only(claude: StartClaude, model: AnthropicModel) -> None:
    """An input longer than the SDK's buffer and a worker's line is written in full, and truncated in the event."""
    size = 1_500_000
    model.script(calls("Write", file_path="long.txt", content="x" * size), writes("done"))
    driver = await claude("work")
    await driver.received("driver.result", error_type=None)
    assert (driver.work_dir / "long.txt").stat().st_size == size
    assert 0 < len(driver.emitted("agent.tool_use")[0]["input"]["content"]) < size
