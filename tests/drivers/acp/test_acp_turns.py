"""An agent that speaks the protocol, from its task to its follow-up turns: a real process, driven for real."""

import json
from shutil import which

import pytest

from sandherd_worker.harnesses.event_lines import read_line
from tests.drivers.acp.conftest import Converse
from tests.drivers.driver_process import DriverProcess

pytestmark = pytest.mark.agents


def said(driver: DriverProcess) -> list[str]:
    return [line["content"] for line in driver.said("agent.message")]


async def test_a_task_from_begin_to_end(converse: Converse) -> None:
    """Ready, one turn with all that the agent told, the outcome, idle; an end in order when it is asked to."""
    driver = await converse(
        "think hm\nsay Hello\nplan a|b\n"
        'tool t1 execute {"command": "ls"}\nmore t1 {"status": "in_progress"}\ndone t1 a.py\n'
        "cost 0.25\ntokens 30 4\nsay Done",
        "model",
    )
    await driver.heard("driver.turn", state="idle")
    assert await driver.stop() == 0
    assert [line["type"] for line in driver.lines] == [
        "driver.ready", "driver.turn", "agent.turn_started", "agent.thinking", "agent.message",
        "agent.system_message", "agent.tool_use", "agent.tool_completed", "agent.tool_result", "agent.message",
        "agent.assistant_message", "agent.usage", "agent.turn_completed", "driver.result", "driver.turn",
    ]  # fmt: skip
    assert driver.said("driver.ready") == [{"session_id": "sess-1", "model": "scripted-9", "version": "scripted 1.0"}]
    usage = driver.said("agent.usage")[0]
    assert (usage["cost_micro_usd"], usage["input_tokens"], usage["output_tokens"]) == (250_000, 30, 4)
    assert driver.said("driver.result") == [
        {"error_type": None, "error": "", "signal": None, "turns": 1, "final_output": "Done", "stop_reason": "end_turn",
         "session_id": "sess-1"}
    ]  # fmt: skip


async def test_what_is_said_is_what_a_worker_reads(converse: Converse) -> None:
    """Every event is one of the contract, with the turn that it belongs to."""
    driver = await converse("say a\ntool t edit\nfailed t no\nplan x\ncost 1\nend refusal")
    await driver.heard("driver.turn", state="idle")
    events = [line for line in driver.lines if line["type"].startswith("agent.")]
    read = [read_line(json.dumps(line).encode(), 99, "driver") for line in events]
    assert {event.turn for event in read} == {1}  # type: ignore[attr-defined]  # an agent's events have it


async def test_an_agent_has_its_environment_and_none_of_ours(converse: Converse) -> None:
    """What it was given by the task; the driver's own path for Python is not its."""
    driver = await converse("env SCRIPTED\nsay |\nenv PYTHONPATH\nsay |\nenv SANDHERD_EVENTS_FD", SCRIPTED="yes")
    await driver.heard("driver.turn", state="idle")
    assert said(driver) == ["yes|unset|"]


async def test_a_message_after_the_end_is_a_turn_of_its_own(converse: Converse) -> None:
    """In the same session, with a receipt; the outcome of the task is said once."""
    driver = await converse("say one")
    await driver.heard("driver.turn", state="idle")
    message = driver.message("say two\nprompts")
    await driver.heard("driver.turn", turn=2, state="idle")
    assert driver.said("driver.taken") == [{"message": message}]
    assert said(driver)[-1] == 'two[["say one"], ["say two\\nprompts"]]'
    assert len(driver.said("driver.result")) == 1
    assert [line["turn"] for line in driver.said("agent.turn_completed")] == [1, 2]


async def test_messages_in_a_turn_wait_for_its_end(converse: Converse) -> None:
    """They are the next prompt, in order, once, and taken only then; the agent is not idle in between."""
    driver = await converse("may t1 go")
    ask = await driver.heard("driver.ask")
    sent = [driver.message("prompts"), driver.message("say b", "guardian_nudge"), driver.message("say c", "system")]
    driver.send("message", message=sent[0], message_type="user_message", content="prompts", sender_id=None)
    driver.send("nonsense")  # Commands are read in their order: when this is complained of, all are heard.
    await driver.heard("agent.error", phase="driver")
    assert driver.said("driver.taken") == []
    driver.send("decide", approval_id=ask["approval_id"], granted=True, reason=None)
    await driver.heard("driver.turn", turn=2, state="idle")
    assert [line["message"] for line in driver.said("driver.taken")] == sent
    assert json.loads(said(driver)[-1])[1] == ["prompts", "[GUARDIAN INTERVENTION] say b", "[SYSTEM NOTE] say c"]
    assert [(line["turn"], line["state"]) for line in driver.said("driver.turn")] == [
        (1, "running"), (2, "running"), (2, "idle"),
    ]  # fmt: skip
    assert driver.said("driver.result")[0]["turns"] == 2


async def test_a_message_that_expires_during_a_turn_is_not_given(converse: Converse) -> None:
    """It is refused at the turn's end, each time that it comes, and the agent waits as if it had not come."""
    driver = await converse("may t1 go")
    late = {"message": "m", "message_type": "user_message", "content": "say late", "sender_id": None, "expires_at": 1}
    for turn, count in ((1, 1), (2, 2)):
        ask = await driver.heard("driver.ask", count)
        driver.send("message", **late)
        driver.send("nonsense")
        await driver.heard("agent.error", count, phase="driver")
        driver.send("decide", approval_id=ask["approval_id"], granted=True, reason=None)
        await driver.heard("driver.turn", turn=turn, state="idle")
        assert [line["message"] for line in driver.said("driver.refused")] == ["m"] * count
        driver.message("may t2 go" if turn == 1 else "prompts")
    await driver.heard("driver.turn", turn=3, state="idle")
    assert json.loads(said(driver)[-1]) == [["may t1 go"], ["may t2 go"], ["prompts"]]
    assert "m" not in [line["message"] for line in driver.said("driver.taken")]


async def test_a_message_that_comes_again_is_acknowledged_again(converse: Converse) -> None:
    """And not given to the agent a second time."""
    driver = await converse("say one")
    await driver.heard("driver.turn", state="idle")
    again = {"message": "m", "message_type": "user_message", "content": "say two", "sender_id": None}
    driver.send("message", **again)
    await driver.heard("driver.turn", turn=2, state="idle")
    driver.send("message", **again)
    await driver.heard("driver.taken", count=2)
    await driver.stop()
    assert len(driver.said("agent.turn_started")) == 2


@pytest.mark.parametrize("temper", ["calm", "angry"])
async def test_an_interrupt_keeps_the_session(converse: Converse, temper: str) -> None:
    """The turn ends, which is no outcome of the task; the next message goes on in the same session, and is one.

    Also if the agent answers a cancelled turn with an error.
    """
    driver = await converse("tool t1 execute\nwait", temper)
    await driver.heard("agent.tool_use")
    driver.send("interrupt")
    await driver.heard("driver.turn", turn=1, state="idle")
    assert driver.said("driver.result") == []
    assert driver.said("agent.tool_result")[0]["is_error"]
    assert driver.said("agent.turn_completed")[0]["stop_reason"] == "interrupted"
    driver.message("prompts")
    result = await driver.heard("driver.result")
    assert (result["error_type"], result["turns"]) == (None, 2)
    assert len(json.loads(result["final_output"])) == 2


async def test_an_agent_that_does_not_heed_an_interrupt_is_told_again(converse: Converse) -> None:
    """And so are people; until it ends its turn."""
    driver = await converse("wait", "stubborn", hasty="_CANCELLING")
    await driver.heard("driver.turn", state="running")
    driver.send("interrupt")
    await driver.heard("driver.turn", state="idle")
    assert {error["phase"] for error in driver.said("agent.error")} == {"interrupt"}


async def test_a_message_that_interrupts(converse: Converse) -> None:
    """The turn is cancelled, and the agent goes on with the message at once, after those that came before it."""
    driver = await converse("wait")
    await driver.heard("driver.turn", state="running")
    first, second = driver.message("say one"), driver.message("prompts", "interrupt")
    result = await driver.heard("driver.result")
    assert [line["message"] for line in driver.said("driver.taken")] == [first, second]
    assert result["final_output"] == 'one[["wait"], ["say one", "prompts"]]'
    assert [line["stop_reason"] for line in driver.said("agent.turn_completed")] == ["interrupted", "end_turn"]


async def test_an_interrupt_before_the_first_turn(converse: Converse) -> None:
    """It reaches the turn that is about to begin; one that comes while the agent waits changes nothing."""
    driver = await converse("wait")
    driver.send("interrupt")
    await driver.heard("driver.turn", state="idle")
    driver.send("interrupt")
    await driver.heard("driver.turn", state="idle", count=2)
    driver.message("say on")
    assert (await driver.heard("driver.result"))["final_output"] == "on"


async def test_costs_are_charged_by_turn(converse: Converse) -> None:
    """The agent's total grows; each turn has its part."""
    driver = await converse("cost 0.1")
    await driver.heard("driver.turn", state="idle")
    driver.message("cost 0.4")
    await driver.heard("driver.turn", turn=2, state="idle")
    assert [usage["cost_micro_usd"] for usage in driver.said("agent.usage")] == [100_000, 300_000]


async def test_files_by_way_of_the_client(converse: Converse) -> None:
    """The agent reads and writes its work tree; what is elsewhere is refused, and the turn goes on."""
    driver = await converse("fs")
    await driver.heard("driver.turn", state="idle")
    inside, outside = driver.work_dir / "a.txt", driver.home / "outside.txt"
    (driver.work_dir / "link").symlink_to(driver.home)
    driver.message(f"write {inside} hello\nsay |\nread {inside}\nsay |\nread {driver.work_dir}/none")
    await driver.heard("driver.turn", turn=2, state="idle")
    driver.message(f"write {outside} no\nsay |\nwrite {driver.work_dir}/link/outside.txt no\nsay |\nread /etc/passwd")
    await driver.heard("driver.turn", turn=3, state="idle")
    assert said(driver)[0] == "True True"
    written, read, missing = said(driver)[1].split("|")
    assert (written, read, inside.read_text()) == ("written", "hello", "hello")
    assert missing.startswith("error -32002")
    assert [answer[:12] for answer in said(driver)[2].split("|")] == ["error -32602"] * 3
    assert not outside.exists()


async def test_a_session_is_gone_on_with(converse: Converse) -> None:
    """What the agent tells again is not said again, nor is what it had cost charged again."""
    resume = {"session_id": "sess-7", "transcript": "", "fork": False}
    driver = await converse("say new\ncost 0.75", resume=resume)
    result = await driver.heard("driver.result")
    assert result["session_id"] == "sess-7"
    assert said(driver) == ["new"]
    assert driver.said("agent.tool_use") == []
    assert driver.said("agent.usage")[0]["cost_micro_usd"] == 250_000


async def test_a_session_is_forked(converse: Converse) -> None:
    """By an agent that can."""
    resume = {"session_id": "sess-7", "transcript": "", "fork": True}
    driver = await converse("say new", "forks", resume=resume)
    assert (await driver.heard("driver.ready"))["session_id"] == "sess-7-fork"


async def test_what_an_agent_complains_about_is_output(converse: Converse) -> None:
    """Its standard error is the terminal."""
    driver = await converse("complain about the weather")
    await driver.heard("driver.result")
    await driver.until(lambda: "about the weather" in driver.output, "nothing was printed")


async def test_an_agent_is_told_of_servers_of_further_tools(converse: Converse) -> None:
    """As its protocol has it: by name, with variables one by one, and with the whole path of a program that has one."""
    servers = {
        "herd": {"command": "/no/such/python", "args": ["-m", "x"], "env": {"TOKEN": "t"}},
        "shell": {"command": "sh", "args": [], "env": {}},
    }
    driver = await converse("servers", servers=servers)
    await driver.heard("driver.turn", state="idle")
    assert await driver.stop() == 0
    herd, shell = json.loads(said(driver)[0])
    variable = {"name": "TOKEN", "value": "t"}
    assert herd == {"name": "herd", "command": "/no/such/python", "args": ["-m", "x"], "env": [variable]}
    assert shell["command"] == which("sh")
