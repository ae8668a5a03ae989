"""The end of an ACP agent: one outcome, the right one, and no process left."""

import os
from pathlib import Path

import psutil
import pytest

from tests.drivers.acp.conftest import Converse
from tests.drivers.conftest import StartDriver
from tests.drivers.driver_process import DriverProcess

pytestmark = pytest.mark.agents


def in_order(driver: DriverProcess, *types: str) -> bool:
    """Whether each of these events was published once, in this order."""
    return [line["type"] for line in driver.lines if line["type"] in types] == list(types)


def agent_of(driver: DriverProcess) -> int:
    """The process of the driver's agent."""
    (agent,) = psutil.Process(driver.process.pid).children()
    return int(agent.pid)


async def test_failed_turn_sets_outcome_and_session_continues(converse: Converse) -> None:
    """The first turn's stop reason is the task's outcome; later turns report theirs and the session continues."""
    driver = await converse("say so far\nend refusal")
    result = await driver.received("driver.result")
    assert (result["error_type"], result["stop_reason"], result["final_output"]) == ("internal", "refusal", "so far")
    for turn, reason in enumerate(("max_tokens", "cancelled", "bored", "end_turn"), start=2):
        driver.message(f"end {reason}")
        await driver.received("driver.turn", turn=turn, state="idle")
    stops = [line["stop_reason"] for line in driver.emitted("agent.turn_completed")]
    assert stops == ["refusal", "max_tokens", "cancelled", None, "end_turn"]
    assert [line["turn"] for line in driver.emitted("agent.error")] == [1, 2, 3, 4]
    assert len(driver.emitted("driver.result")) == 1


async def test_error_response_to_prompt_is_the_outcome(converse: Converse) -> None:
    """The outcome has the error's text; the session continues."""
    driver = await converse("error -32603 the model is away")
    result = await driver.received("driver.result")
    assert result["error_type"] == "internal"
    assert "the model is away" in result["error"]
    driver.message("say back")
    await driver.received("agent.message", content="back")


@pytest.mark.parametrize(
    ("end", "error_type", "stream"), [("die", "signal", "sigkill"), ("exit 3", "exit_status", "command_failed")]
)
async def test_agent_exit_during_turn_ends_driver(converse: Converse, end: str, error_type: str, stream: str) -> None:
    """The outcome names the exit, the open call ends, a waiting message is refused, and the driver exits."""
    driver = await converse(f"say a\ntool t1 execute\nmay t2 go\n{end}")
    ask = await driver.received("driver.ask")
    waiting = driver.message("say b")
    driver.send("decide", approval_id=ask["approval_id"], granted=True, reason=None)
    assert await driver.ended() == 0
    assert driver.emitted("driver.result")[0]["error_type"] == error_type
    assert driver.emitted("agent.stream_error")[0]["error_type"] == stream
    assert {line["tool_use_id"] for line in driver.emitted("agent.tool_result")} == {"t1", "t2"}
    assert [line["message"] for line in driver.emitted("driver.refused")] == [waiting]
    assert driver.emitted("driver.taken") == []


async def test_agent_killed_during_turn_ends_driver(converse: Converse) -> None:
    """A SIGKILL of the agent during a turn is the outcome."""
    driver = await converse("wait")
    await driver.received("driver.turn", state="running")
    os.kill(agent_of(driver), 9)
    assert await driver.ended() == 0
    result = driver.emitted("driver.result")[0]
    assert (result["error"], result["signal"]) == ("the agent was killed by SIGKILL", 9)


async def test_agent_killed_while_idle_leaves_the_outcome(converse: Converse) -> None:
    """The task's outcome stands; the end of the agent is an error event, and the driver exits."""
    driver = await converse("say done")
    await driver.received("driver.turn", state="idle")
    os.kill(agent_of(driver), 9)
    assert await driver.ended() == 0
    assert [result["error_type"] for result in driver.emitted("driver.result")] == [None]
    assert driver.emitted("agent.stream_error")[0]["error_type"] == "sigkill"


async def test_message_unacknowledged_when_agent_exits_is_refused(converse: Converse) -> None:
    """A message is refused if the agent exits without a sign that it has received it."""
    driver = await converse("say done")
    await driver.received("driver.turn", state="idle")
    message = driver.message("die")
    assert await driver.ended() == 0
    assert driver.emitted("driver.taken") == []
    assert driver.emitted("driver.refused")[0]["message"] == message


async def test_inherited_pipes_do_not_delay_the_end_of_the_agent(converse: Converse) -> None:
    """The agent has ended, though a child of it still has its standard output open."""
    driver = await converse("hold")
    assert await driver.ended() == 0
    assert driver.emitted("driver.result")[0]["error_type"] == "signal"


async def test_agent_that_closes_its_output_is_ended(converse: Converse) -> None:
    """A live agent that can't send anything is ended, with the driver."""
    driver = await converse("mute")
    await driver.received("driver.turn", state="running")
    agent = agent_of(driver)
    assert await driver.ended() == 0
    assert "closed its side" in driver.emitted("driver.result")[0]["error"]
    assert not psutil.pid_exists(agent)


async def test_invalid_protocol_lines_are_shown_as_output(converse: Converse) -> None:
    """A line on standard output that is no message is shown once, and affects no message."""
    broken = (
        '{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"sess-1","update":{"sessionUpdate":"x"}}}'
    )
    stranger = '{"jsonrpc":"2.0","id":77,"method":"terminal/dance","params":[]}'
    driver = await converse(f"print npm warn\nprint 42\nprint {{}}\nprint {broken}\nprint {stranger}\nsay fine")
    result = await driver.received("driver.result")
    assert (result["error_type"], result["final_output"]) == (None, "fine")
    errors = driver.emitted("agent.error")
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
async def test_agent_that_fails_to_start_is_a_start_error(
    converse: Converse, are: str, error_type: str, text: str
) -> None:
    """The outcome states the reason; there was no turn."""
    driver = await converse("say hello", are)
    assert await driver.ended() == 0
    result = driver.emitted("driver.result")[0]
    assert (result["error_type"], result["turns"]) == (error_type, 0)
    assert text in result["error"]
    assert driver.emitted("driver.turn") == driver.emitted("driver.ready") == []


@pytest.mark.parametrize(
    ("are", "resume", "text"),
    [
        ("plain", {"session_id": "s", "fork": False}, "can't resume an earlier session; start again"),
        ("plain", {"session_id": "s", "fork": True}, "can't fork a session; continue it without"),
        ("usual", {"session_id": "lost", "fork": False}, "session/load"),
    ],
)
async def test_session_that_cannot_be_resumed_fails_the_start(
    converse: Converse, are: str, resume: dict[str, object], text: str
) -> None:
    """The result is a start error that names the reason; no new session replaces the old one."""
    driver = await converse("say hello", are, resume={"transcript": "", **resume})
    assert await driver.ended() == 0
    result = driver.emitted("driver.result")[0]
    assert result["error_type"] == "start"
    assert text in result["error"]
    assert "start again" in result["error"]


async def test_missing_program_is_a_start_error(start_driver: StartDriver, python: Path) -> None:
    """The error names the program."""
    driver = await start_driver("acp", python=python)
    driver.begin("say hello", {"kind": "acp", "argv": ["no-such-agent"]})
    assert await driver.ended() == 0
    result = driver.emitted("driver.result")[0]
    assert (result["error_type"], "no-such-agent" in result["error"]) == ("start", True)


async def test_missing_library_is_a_start_error(start_driver: StartDriver) -> None:
    """The driver reports an interpreter without the library."""
    driver = await start_driver("acp")
    assert await driver.ended() == 0
    assert driver.emitted("driver.result")[0]["error_type"] == "start"


@pytest.mark.parametrize("how", ["stop", "end of input", "SIGTERM"])
async def test_stop_during_turn_ends_driver_and_agent(converse: Converse, how: str) -> None:
    """The turn is cancelled, waiting messages are refused, and the outcome is `stopped`."""
    driver = await converse("tool t1 execute\nwait")
    await driver.received("agent.tool_use")
    agent, waiting = agent_of(driver), driver.message("say b")
    if how == "stop":
        driver.send("stop")
    elif how == "SIGTERM":
        driver.process.terminate()
    else:
        driver.close_input()
    assert await driver.ended() == 0
    assert driver.emitted("driver.result")[0]["error_type"] == "stopped"
    assert driver.emitted("agent.turn_completed")[0]["stop_reason"] == "interrupted"
    assert not psutil.pid_exists(agent)
    if how != "SIGTERM":
        assert [line["message"] for line in driver.emitted("driver.refused")] == [waiting]


async def test_agent_that_ignores_the_stop_is_killed(converse: Converse) -> None:
    """The agent and its calls are killed, and its cost is reported before."""
    driver = await converse("cost 0.25\ntool t1 execute\nwait", "stone")
    await driver.received("agent.tool_use")
    agent = agent_of(driver)
    assert await driver.stop() == 0
    assert driver.emitted("driver.result")[0]["error_type"] == "stopped"
    assert driver.emitted("agent.tool_result")[0]["is_error"]
    assert driver.emitted("agent.usage")[0]["cost_micro_usd"] == 250_000
    assert in_order(driver, "agent.usage", "driver.result")
    assert not psutil.pid_exists(agent)


async def test_unresponsive_agent_is_killed_at_stop(converse: Converse) -> None:
    """A stop also ends an agent that has not started."""
    driver = await converse("say hello", "deaf")
    await driver.until(lambda: "deaf" in driver.output, "there is no agent")
    assert await driver.stop() == 0
    assert driver.emitted("driver.result")[0]["error_type"] == "stopped"


async def test_agent_that_does_not_start_in_time_is_a_start_error(converse: Converse) -> None:
    """An agent that does not reply within the start time could not be started."""
    driver = await converse("say hello", "deaf", hasty="_START_SECONDS")
    assert await driver.ended() == 0
    result = driver.emitted("driver.result")[0]
    assert (result["error_type"], "did not begin a session" in result["error"]) == ("start", True)
