"""How it ends, whatever the agent does: one outcome, the right one, and nothing left behind."""

import os
from pathlib import Path

import psutil
import pytest

from tests.drivers.acp.conftest import Converse
from tests.drivers.conftest import StartDriver
from tests.drivers.driver_process import DriverProcess

pytestmark = pytest.mark.agents


def in_order(driver: DriverProcess, *types: str) -> bool:
    """Whether these were said once each, and in this order."""
    return [line["type"] for line in driver.lines if line["type"] in types] == list(types)


def agent_of(driver: DriverProcess) -> int:
    """The process of the driver's agent."""
    (agent,) = psutil.Process(driver.process.pid).children()
    return int(agent.pid)


async def test_turns_that_do_not_end_well(converse: Converse) -> None:
    """The outcome is that of the task's turn and says why; the session stays, and each later turn is told of."""
    driver = await converse("say so far\nend refusal")
    result = await driver.heard("driver.result")
    assert (result["error_type"], result["stop_reason"], result["final_output"]) == ("internal", "refusal", "so far")
    for turn, reason in enumerate(("max_tokens", "cancelled", "bored", "end_turn"), start=2):
        driver.message(f"end {reason}")
        await driver.heard("driver.turn", turn=turn, state="idle")
    stops = [line["stop_reason"] for line in driver.said("agent.turn_completed")]
    assert stops == ["refusal", "max_tokens", "cancelled", None, "end_turn"]
    assert [line["turn"] for line in driver.said("agent.error")] == [1, 2, 3, 4]
    assert len(driver.said("driver.result")) == 1


async def test_an_error_in_answer_to_the_prompt(converse: Converse) -> None:
    """It is the outcome; the session stays."""
    driver = await converse("error -32603 the model is away")
    result = await driver.heard("driver.result")
    assert result["error_type"] == "internal"
    assert "the model is away" in result["error"]
    driver.message("say back")
    await driver.heard("agent.message", content="back")


@pytest.mark.parametrize(
    ("end", "error_type", "stream"), [("die", "signal", "sigkill"), ("exit 3", "exit_status", "command_failed")]
)
async def test_an_agent_that_ends_in_a_turn(converse: Converse, end: str, error_type: str, stream: str) -> None:
    """Told as what it is; what it did comes to an end; a message that waited is refused; the driver leaves."""
    driver = await converse(f"say a\ntool t1 execute\nmay t2 go\n{end}")
    ask = await driver.heard("driver.ask")
    waiting = driver.message("say b")
    driver.send("decide", approval_id=ask["approval_id"], granted=True, reason=None)
    assert await driver.ended() == 0
    assert driver.said("driver.result")[0]["error_type"] == error_type
    assert driver.said("agent.stream_error")[0]["error_type"] == stream
    assert {line["tool_use_id"] for line in driver.said("agent.tool_result")} == {"t1", "t2"}
    assert [line["message"] for line in driver.said("driver.refused")] == [waiting]
    assert driver.said("driver.taken") == []


async def test_an_agent_that_is_killed_from_outside(converse: Converse) -> None:
    """By kill -9, in the middle of a turn."""
    driver = await converse("wait")
    await driver.heard("driver.turn", state="running")
    os.kill(agent_of(driver), 9)
    assert await driver.ended() == 0
    result = driver.said("driver.result")[0]
    assert (result["error"], result["signal"]) == ("the agent was killed by SIGKILL", 9)


async def test_an_agent_that_is_killed_while_it_waits(converse: Converse) -> None:
    """The outcome of its task stands; that it is gone is told, and the driver leaves."""
    driver = await converse("say done")
    await driver.heard("driver.turn", state="idle")
    os.kill(agent_of(driver), 9)
    assert await driver.ended() == 0
    assert [result["error_type"] for result in driver.said("driver.result")] == [None]
    assert driver.said("agent.stream_error")[0]["error_type"] == "sigkill"


async def test_a_message_that_the_agent_takes_to_its_grave(converse: Converse) -> None:
    """Not taken: it showed no sign of having it. The sender is told so."""
    driver = await converse("say done")
    await driver.heard("driver.turn", state="idle")
    message = driver.message("die")
    assert await driver.ended() == 0
    assert driver.said("driver.taken") == []
    assert driver.said("driver.refused")[0]["message"] == message


async def test_something_that_holds_the_pipes_holds_nothing_up(converse: Converse) -> None:
    """The agent is dead, though what it started keeps its standard output open."""
    driver = await converse("hold")
    assert await driver.ended() == 0
    assert driver.said("driver.result")[0]["error_type"] == "signal"


async def test_an_agent_that_closes_its_output(converse: Converse) -> None:
    """It lives, but will say nothing more: that is the end, and the end of it too."""
    driver = await converse("mute")
    await driver.heard("driver.turn", state="running")
    agent = agent_of(driver)
    assert await driver.ended() == 0
    assert "closed its side" in driver.said("driver.result")[0]["error"]
    assert not psutil.pid_exists(agent)


async def test_garbage_is_output(converse: Converse) -> None:
    """What is no message on the agent's standard output is shown, told once, and harms nothing."""
    broken = (
        '{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"sess-1","update":{"sessionUpdate":"x"}}}'
    )
    stranger = '{"jsonrpc":"2.0","id":77,"method":"terminal/dance","params":[]}'
    driver = await converse(f"print npm warn\nprint 42\nprint {{}}\nprint {broken}\nprint {stranger}\nsay fine")
    result = await driver.heard("driver.result")
    assert (result["error_type"], result["final_output"]) == (None, "fine")
    errors = driver.said("agent.error")
    assert [(error["phase"], error["error"][:26]) for error in errors] == [("protocol", "the agent printed 3 lines ")]
    await driver.until(lambda: "npm warn\n42\n{}\n" in driver.output, "the garbage was not shown")


@pytest.mark.parametrize(
    ("are", "error_type", "text"),
    [
        ("auth", "start", "set SCRIPTED_KEY"),
        ("old", "start", "version 0"),
        ("fails", "exit_status", "status 7"),
    ],
)
async def test_an_agent_that_does_not_begin(converse: Converse, are: str, error_type: str, text: str) -> None:
    """The outcome says why; there was no turn."""
    driver = await converse("say hello", are)
    assert await driver.ended() == 0
    result = driver.said("driver.result")[0]
    assert (result["error_type"], result["turns"]) == (error_type, 0)
    assert text in result["error"]
    assert driver.said("driver.turn") == driver.said("driver.ready") == []


@pytest.mark.parametrize(
    ("are", "resume", "text"),
    [
        ("plain", {"session_id": "s", "fork": False}, "can't go on with an earlier session; begin anew"),
        ("plain", {"session_id": "s", "fork": True}, "can't fork a session; go on with it without"),
        ("usual", {"session_id": "lost", "fork": False}, "session/load"),
    ],
)
async def test_a_session_that_can_not_be_gone_on_with(
    converse: Converse, are: str, resume: dict[str, object], text: str
) -> None:
    """It is said; a new session is not begun in its place."""
    driver = await converse("say hello", are, resume={"transcript": "", **resume})
    assert await driver.ended() == 0
    result = driver.said("driver.result")[0]
    assert result["error_type"] == "start"
    assert text in result["error"]
    assert "begin anew" in result["error"]


async def test_a_program_that_is_not_there(start_driver: StartDriver, python: Path) -> None:
    """It couldn't be started, and which one is said."""
    driver = await start_driver("acp", python=python)
    driver.begin("say hello", {"kind": "acp", "argv": ["no-such-agent"]})
    assert await driver.ended() == 0
    result = driver.said("driver.result")[0]
    assert (result["error_type"], "no-such-agent" in result["error"]) == ("start", True)


async def test_no_library_is_a_start_that_failed(start_driver: StartDriver) -> None:
    """Under an interpreter without it, the driver says so."""
    driver = await start_driver("acp")
    assert await driver.ended() == 0
    assert driver.said("driver.result")[0]["error_type"] == "start"


@pytest.mark.parametrize("how", ["stop", "end of input", "SIGTERM"])
async def test_stopping_ends_the_agent_too(converse: Converse, how: str) -> None:
    """In the middle of a turn: it is cancelled, what waits is refused, the outcome is that it was stopped."""
    driver = await converse("tool t1 execute\nwait")
    await driver.heard("agent.tool_use")
    agent, waiting = agent_of(driver), driver.message("say b")
    if how == "stop":
        driver.send("stop")
    elif how == "SIGTERM":
        driver.process.terminate()
    else:
        driver.close_input()
    assert await driver.ended() == 0
    assert driver.said("driver.result")[0]["error_type"] == "stopped"
    assert driver.said("agent.turn_completed")[0]["stop_reason"] == "interrupted"
    assert not psutil.pid_exists(agent)
    if how != "SIGTERM":
        assert [line["message"] for line in driver.said("driver.refused")] == [waiting]


async def test_an_agent_that_does_not_heed_the_end(converse: Converse) -> None:
    """It goes on with its turn: it is ended anyway, and so are its calls; what it has cost is told before that."""
    driver = await converse("cost 0.25\ntool t1 execute\nwait", "stone")
    await driver.heard("agent.tool_use")
    agent = agent_of(driver)
    assert await driver.stop() == 0
    assert driver.said("driver.result")[0]["error_type"] == "stopped"
    assert driver.said("agent.tool_result")[0]["is_error"]
    assert driver.said("agent.usage")[0]["cost_micro_usd"] == 250_000
    assert in_order(driver, "agent.usage", "driver.result")
    assert not psutil.pid_exists(agent)


async def test_an_agent_that_never_answers_is_left(converse: Converse) -> None:
    """A stop ends what has not begun, too."""
    driver = await converse("say hello", "deaf")
    await driver.until(lambda: "deaf" in driver.output, "there is no agent")
    assert await driver.stop() == 0
    assert driver.said("driver.result")[0]["error_type"] == "stopped"


async def test_an_agent_that_does_not_begin_in_time_is_left(converse: Converse) -> None:
    """It has not answered while there was patience: it couldn't be started."""
    driver = await converse("say hello", "deaf", hasty="_BEGINNING")
    assert await driver.ended() == 0
    result = driver.said("driver.result")[0]
    assert (result["error_type"], "not begun a session" in result["error"]) == ("start", True)
