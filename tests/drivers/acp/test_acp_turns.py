"""Turns of an ACP agent in a real process, from its task to follow-up turns."""

import json
from shutil import which

import pytest

from tests.drivers.acp.conftest import Converse
from tests.drivers.driver_process import DriverProcess
from tests.events_pipe import published

pytestmark = pytest.mark.agents


def emitted(driver: DriverProcess) -> list[str]:
    return [line["content"] for line in driver.emitted("agent.message")]


async def test_task_runs_from_begin_to_stop(converse: Converse) -> None:
    """The driver reports ready, one turn with all updates, the outcome and idle, and stops with status 0."""
    driver = await converse(
        "think hm\nsay Hello\nplan a|b\n"
        'tool t1 execute {"command": "ls"}\nmore t1 {"status": "in_progress"}\ndone t1 a.py\n'
        "cost 0.25\ntokens 30 4\nsay Done",
        "model",
    )
    await driver.received("driver.turn", state="idle")
    assert await driver.stop() == 0
    assert [line["type"] for line in driver.lines] == [
        "driver.ready", "driver.turn", "agent.turn_started", "agent.thinking", "agent.message",
        "agent.system_message", "agent.tool_use", "agent.tool_completed", "agent.tool_result", "agent.message",
        "agent.assistant_message", "agent.usage", "agent.turn_completed", "driver.result", "driver.turn",
    ]  # fmt: skip
    assert driver.emitted("driver.ready") == [
        {"session_id": "sess-1", "model": "scripted-9", "version": "scripted 1.0"}
    ]
    usage = driver.emitted("agent.usage")[0]
    assert (usage["cost_micro_usd"], usage["input_tokens"], usage["output_tokens"]) == (250_000, 30, 4)
    assert driver.emitted("driver.result") == [
        {"error_type": None, "error": "", "signal": None, "turns": 1, "final_output": "Done", "stop_reason": "end_turn",
         "session_id": "sess-1"}
    ]  # fmt: skip


async def test_events_of_driver_conform_to_contract(converse: Converse) -> None:
    """The worker reads each line of the driver as an event of the contract, with its turn."""
    driver = await converse("say a\ntool t edit\nfailed t no\nplan x\ncost 1\nend refusal")
    await driver.received("driver.turn", state="idle")
    events = [line for line in driver.lines if line["type"].startswith("agent.")]
    read = await published(b"".join(json.dumps(line).encode() + b"\n" for line in events), "driver", turn=99)
    assert [event.type for event in read] == [line["type"] for line in events]
    assert {event.turn for event in read} == {1}


async def test_agent_has_the_environment_of_its_task(converse: Converse) -> None:
    """The agent does not get the driver's own path for Python."""
    driver = await converse("env SCRIPTED\nsay |\nenv PYTHONPATH\nsay |\nenv SANDHERD_EVENTS_FD", SCRIPTED="yes")
    await driver.received("driver.turn", state="idle")
    assert emitted(driver) == ["yes|unset|"]


async def test_message_after_the_end_is_a_turn_of_its_own(converse: Converse) -> None:
    """The message is acknowledged in the same session; the task's outcome is reported once."""
    driver = await converse("say one")
    await driver.received("driver.turn", state="idle")
    message = driver.message("say two\nprompts")
    await driver.received("driver.turn", turn=2, state="idle")
    assert driver.emitted("driver.taken") == [{"message": message}]
    assert emitted(driver)[-1] == 'two[["say one"], ["say two\\nprompts"]]'
    assert len(driver.emitted("driver.result")) == 1
    assert [line["turn"] for line in driver.emitted("agent.turn_completed")] == [1, 2]


async def test_messages_during_a_turn_wait_for_its_end(converse: Converse) -> None:
    """The messages are the next prompt, in order, once, and are acknowledged only then, without idleness between."""
    driver = await converse("may t1 go")
    ask = await driver.received("driver.ask")
    sent = [driver.message("prompts", origin="nudge"), driver.message("say b", "guardian_nudge", origin="user")]
    sent.append(driver.message("say c", "system", origin="system"))
    driver.send("message", message=sent[0], message_type="user_message", content="prompts", sender_id=None)
    driver.send("nonsense")  # Commands are read in their order: when this is reported, all are received.
    await driver.received("agent.error", phase="driver")
    assert driver.emitted("driver.taken") == []
    driver.send("decide", approval_id=ask["approval_id"], granted=True, reason=None)
    await driver.received("driver.turn", turn=2, state="idle")
    assert [line["message"] for line in driver.emitted("driver.taken")] == sent
    assert [line["origin"] for line in driver.emitted("agent.turn_started")] == ["task", "user"]
    assert json.loads(emitted(driver)[-1])[1] == ["prompts", "[GUARDIAN INTERVENTION] say b", "[SYSTEM NOTE] say c"]
    assert [(line["turn"], line["state"]) for line in driver.emitted("driver.turn")] == [
        (1, "running"), (2, "running"), (2, "idle"),
    ]  # fmt: skip
    assert driver.emitted("driver.result")[0]["turns"] == 2


async def test_message_that_expires_during_a_turn_is_refused(converse: Converse) -> None:
    """The message is refused at the turn's end, each time that it comes, and the agent stays idle."""
    driver = await converse("may t1 go")
    late = {"message": "m", "message_type": "user_message", "content": "say late", "sender_id": None, "expires_at": 1}
    for turn, count in ((1, 1), (2, 2)):
        ask = await driver.received("driver.ask", count)
        driver.send("message", **late)
        driver.send("nonsense")
        await driver.received("agent.error", count, phase="driver")
        driver.send("decide", approval_id=ask["approval_id"], granted=True, reason=None)
        await driver.received("driver.turn", turn=turn, state="idle")
        assert [line["message"] for line in driver.emitted("driver.refused")] == ["m"] * count
        driver.message("may t2 go" if turn == 1 else "prompts")
    await driver.received("driver.turn", turn=3, state="idle")
    assert json.loads(emitted(driver)[-1]) == [["may t1 go"], ["may t2 go"], ["prompts"]]
    assert "m" not in [line["message"] for line in driver.emitted("driver.taken")]


async def test_repeated_message_is_acknowledged_without_delivery(converse: Converse) -> None:
    """The agent does not get the message a second time."""
    driver = await converse("say one")
    await driver.received("driver.turn", state="idle")
    again = {"message": "m", "message_type": "user_message", "content": "say two", "sender_id": None}
    driver.send("message", **again)
    await driver.received("driver.turn", turn=2, state="idle")
    driver.send("message", **again)
    await driver.received("driver.taken", count=2)
    await driver.stop()
    assert len(driver.emitted("agent.turn_started")) == 2


@pytest.mark.parametrize("temper", ["calm", "angry"])
async def test_interrupt_keeps_the_session(converse: Converse, temper: str) -> None:
    """The interrupted turn is no outcome of the task; the next message continues the session and is one.

    The same holds if the agent replies to a cancelled turn with an error.
    """
    driver = await converse("tool t1 execute\nwait", temper)
    await driver.received("agent.tool_use")
    driver.send("interrupt")
    await driver.received("driver.turn", turn=1, state="idle")
    assert driver.emitted("driver.result") == []
    assert driver.emitted("agent.tool_result")[0]["is_error"]
    assert driver.emitted("agent.turn_completed")[0]["stop_reason"] == "interrupted"
    driver.message("prompts")
    result = await driver.received("driver.result")
    assert (result["error_type"], result["turns"]) == (None, 2)
    assert len(json.loads(result["final_output"])) == 2


async def test_unheeded_interrupt_is_repeated_and_reported(converse: Converse) -> None:
    """The driver repeats an interrupt that the agent ignores and reports an error until the turn ends."""
    driver = await converse("wait", "stubborn", hasty="_CANCEL_INTERVAL")
    await driver.received("driver.turn", state="running")
    driver.send("interrupt")
    await driver.received("driver.turn", state="idle")
    assert {error["phase"] for error in driver.emitted("agent.error")} == {"interrupt"}


async def test_interrupting_message_is_the_next_turn(converse: Converse) -> None:
    """The turn is cancelled, and the agent continues with the message at once, after earlier ones."""
    driver = await converse("wait")
    await driver.received("driver.turn", state="running")
    first, second = driver.message("say one"), driver.message("prompts", "interrupt")
    result = await driver.received("driver.result")
    assert [line["message"] for line in driver.emitted("driver.taken")] == [first, second]
    assert result["final_output"] == 'one[["wait"], ["say one", "prompts"]]'
    assert [line["stop_reason"] for line in driver.emitted("agent.turn_completed")] == ["interrupted", "end_turn"]


async def test_interrupt_before_the_first_turn_stops_it(converse: Converse) -> None:
    """The interrupt applies to the turn that is about to begin; one while the agent is idle has no effect."""
    driver = await converse("wait")
    driver.send("interrupt")
    await driver.received("driver.turn", state="idle")
    driver.send("interrupt")
    await driver.received("driver.turn", state="idle", count=2)
    driver.message("say on")
    assert (await driver.received("driver.result"))["final_output"] == "on"


async def test_costs_are_charged_per_turn(converse: Converse) -> None:
    """Each turn is charged the difference between the agent's running totals."""
    driver = await converse("cost 0.1")
    await driver.received("driver.turn", state="idle")
    driver.message("cost 0.4")
    await driver.received("driver.turn", turn=2, state="idle")
    assert [usage["cost_micro_usd"] for usage in driver.emitted("agent.usage")] == [100_000, 300_000]


async def test_file_access_through_client_is_confined(converse: Converse) -> None:
    """The agent reads and writes its work tree; a path elsewhere is refused, and the turn continues."""
    driver = await converse("fs")
    await driver.received("driver.turn", state="idle")
    inside, outside = driver.work_dir / "a.txt", driver.home / "outside.txt"
    (driver.work_dir / "link").symlink_to(driver.home)
    driver.message(f"write {inside} hello\nsay |\nread {inside}\nsay |\nread {driver.work_dir}/none")
    await driver.received("driver.turn", turn=2, state="idle")
    driver.message(f"write {outside} no\nsay |\nwrite {driver.work_dir}/link/outside.txt no\nsay |\nread /etc/passwd")
    await driver.received("driver.turn", turn=3, state="idle")
    assert emitted(driver)[0] == "True True"
    written, read, missing = emitted(driver)[1].split("|")
    assert (written, read, inside.read_text()) == ("written", "hello", "hello")
    assert missing.startswith("error -32002")
    assert [answer[:12] for answer in emitted(driver)[2].split("|")] == ["error -32602"] * 3
    assert not outside.exists()


async def test_resumed_session_repeats_no_event_and_no_cost(converse: Converse) -> None:
    """Updates that the agent replays when it loads a session are neither published nor charged a second time."""
    resume = {"session_id": "sess-7", "transcript": "", "fork": False}
    driver = await converse("say new\ncost 0.75", resume=resume)
    assert (await driver.received("agent.turn_started"))["origin"] == "resume"
    result = await driver.received("driver.result")
    assert result["session_id"] == "sess-7"
    assert emitted(driver) == ["new"]
    assert driver.emitted("agent.tool_use") == []
    assert driver.emitted("agent.usage")[0]["cost_micro_usd"] == 250_000


async def test_session_is_forked_by_capable_agent(converse: Converse) -> None:
    """A fork has the session id that the agent returns."""
    resume = {"session_id": "sess-7", "transcript": "", "fork": True}
    driver = await converse("say new", "forks", resume=resume)
    assert (await driver.received("driver.ready"))["session_id"] == "sess-7-fork"


async def test_stderr_of_agent_is_output(converse: Converse) -> None:
    """What the agent prints on standard error is the driver's output."""
    driver = await converse("complain about the weather")
    await driver.received("driver.result")
    await driver.until(lambda: "about the weather" in driver.output, "nothing was printed")


async def test_mcp_servers_are_passed_to_agent(converse: Converse) -> None:
    """The agent receives each server's name, its variables one by one, and the absolute path of its program."""
    servers = {
        "herd": {"command": "/no/such/python", "args": ["-m", "x"], "env": {"TOKEN": "t"}},
        "shell": {"command": "sh", "args": [], "env": {}},
    }
    driver = await converse("servers", servers=servers)
    await driver.received("driver.turn", state="idle")
    assert await driver.stop() == 0
    herd, shell = json.loads(emitted(driver)[0])
    variable = {"name": "TOKEN", "value": "t"}
    assert herd == {"name": "herd", "command": "/no/such/python", "args": ["-m", "x"], "env": [variable]}
    assert shell["command"] == which("sh")
