"""The wire, from the driver's side: commands come as objects, and what is said are lines that a worker can read."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from sandherd_drivers.commands import Begin, Decide, Interrupt, Message, Resume, Stop, read_command
from sandherd_drivers.shortening import LONGEST_LINE, shorten
from sandherd_drivers.wire import Wire
from tests.drivers.conftest import StartDriver
from tests.drivers.driver_process import PACKAGES, DriverProcess

ECHO = "echo_driver"
SCRIPTED = Path(__file__).parent / "scripted"
RESUME = '{"session_id":"1","transcript":"/t","fork":true}'
RESUMED = Begin("t", "/w", "/s", resume=Resume("1", "/t", fork=True))


@pytest.fixture
async def echo(start_driver: StartDriver) -> DriverProcess:
    return await start_driver(module=ECHO, packages=(PACKAGES, SCRIPTED))


@pytest.mark.parametrize(
    ("line", "command"),
    [
        ('{"do":"begin","task":"t","work_dir":"/w","state_dir":"/s","resume":null}', Begin("t", "/w", "/s")),
        (f'{{"do":"begin","task":"t","work_dir":"/w","state_dir":"/s","resume":{RESUME}}}', RESUMED),
        ('{"do":"message","message":"m","message_type":"system","content":"c"}', Message("m", "system", "c")),
        (
            '{"do":"message","message":"m","message_type":"system","content":"c","expires_at":1.5}',
            Message("m", "system", "c", expires_at=1.5),
        ),
        ('{"do":"interrupt"}', Interrupt()),
        ('{"do":"decide","approval_id":"a","granted":true}', Decide("a", granted=True)),
        ('{"do":"stop"}', Stop()),
        ('{"do":"stop","grace":2.8}', Stop(2.8)),
    ],
)
def test_a_line_becomes_a_command(line: str, command: Any) -> None:
    """Each kind, with what may be left out."""
    assert read_command(line.encode()) == command


@pytest.mark.parametrize(("expires_at", "expired"), [(None, False), (1.0, True), (2.0, True), (3.0, False)])
def test_a_message_expires_at_its_time(expires_at: float | None, expired: bool) -> None:
    """At the second itself; one without a time never."""
    assert Message("m", "system", "c", expires_at=expires_at).expired(2.0) is expired


@pytest.mark.parametrize("line", ["", "[]", "{}", '{"do":"fly"}', '{"do":"message"}', '{"do":"stop","how":1}'])
def test_what_is_no_command_is_told_apart(line: str) -> None:
    """It raises one of three errors, and no other."""
    with pytest.raises((ValueError, TypeError, KeyError)):
        read_command(line.encode() or b"{")


def test_a_line_fits_whatever_is_said() -> None:
    """Long texts are cut, the rest stays; objects, sets, surrogates and infinities are no reason to fail."""
    data = {"content": "x" * 3 * LONGEST_LINE, "turn": 3, "odd": {1: {Path("/p")}, "n": float("inf"), "s": "\ud800"}}
    line = shorten("agent.message", data)
    read = json.loads(line)["data"]
    assert len(line) <= LONGEST_LINE
    assert line.count(b"\n") == 1
    assert read["turn"] == 3
    assert read["content"].endswith("more characters]")
    assert read["odd"] == {"1": ["/p"], "n": "inf", "s": "?"}


def test_what_can_not_be_cut_is_told() -> None:
    """An event with too many parts becomes an error that names it."""
    line = json.loads(shorten("agent.message", {"parts": list(range(LONGEST_LINE // 6))}))
    assert line["type"] == "agent.error"
    assert "agent.message" in line["data"]["error"]


async def test_a_driver_says_what_it_does(echo: DriverProcess) -> None:
    """From the task to the result and its transcript; it ends in order, with 0."""
    echo.begin("say hello\nprint shown", {"kind": "echo"})
    assert (await echo.heard("driver.ready"))["session_id"] == "session-1"
    assert (await echo.heard("agent.message"))["content"] == "hello"
    assert (await echo.heard("driver.result"))["error_type"] is None
    await echo.heard("driver.turn", state="idle")
    assert await echo.stop() == 0
    assert echo.output == "shown\n"
    transcript = echo.said("driver.transcript")[-1]
    assert Path(transcript["path"]).read_text() == "turn 1\nthe end\n"


async def test_a_message_is_answered(echo: DriverProcess) -> None:
    """In the middle of a turn, after it, and with a refusal."""
    echo.begin("wait", {})
    await echo.heard("driver.turn", state="running")
    name = echo.message("psst")
    assert await echo.heard("driver.taken") == {"message": name}
    assert (await echo.heard("agent.message"))["content"] == "heard psst"
    echo.send("interrupt")
    await echo.heard("driver.turn", state="idle")
    echo.message("say again")
    await echo.heard("driver.turn", state="idle", turn=2)
    assert await echo.heard("driver.refused", message=echo.message("no"))
    assert len(echo.said("driver.result")) == 1


async def test_an_answer_reaches_who_asked(echo: DriverProcess) -> None:
    """Granted, denied, and withdrawn by an interrupt; an answer to nobody is no harm."""
    echo.begin("use A\nuse B\nuse C", {})
    for count, granted in ((1, True), (2, False)):
        asked = await echo.heard("driver.ask", count)
        assert asked["input"] == {"command": "ls"}
        echo.send("decide", approval_id="apr-of-nobody", granted=True, reason=None)
        echo.send("decide", approval_id=asked["approval_id"], granted=granted, reason=f"r{count}")
    await echo.heard("driver.ask", 3)
    echo.send("interrupt")
    await echo.heard("driver.turn", state="idle")
    said = [message["content"] for message in echo.said("agent.message")]
    assert said == ["A granted r1", "B denied r2", "C denied the turn was stopped"]


@pytest.mark.parametrize("tool", ["", "x" * 257, "many"])
async def test_what_can_not_be_asked_is_answered_with_no(tool: str) -> None:
    """A tool without a sound name, and input that fits no line: nobody hears of it, so nobody is waited for."""
    reading, writing = os.pipe()
    parts = list(range(LONGEST_LINE // 6)) if tool == "many" else []
    decision = await Wire(-1, writing).ask(tool, {"parts": parts})
    os.close(writing)
    with os.fdopen(reading) as said:
        assert len(said.readlines()) == 1
    assert (decision.granted, decision.reason) == (False, "nobody can be asked: it is too much to be shown")


def test_what_is_nested_too_deeply_is_left_out() -> None:
    """The line says so, and a worker can read it."""
    deep: Any = "the core"
    for _ in range(5000):
        deep = [deep]
    line = shorten("driver.ask", {"tool": "x", "input": {"a": deep}})
    assert "too deeply" in line.decode()
    assert "the core" not in line.decode()
    assert json.loads(line)["type"] == "driver.ask"


async def test_a_worker_that_is_gone_ends_its_driver(echo: DriverProcess) -> None:
    """The end of standard input means stop, also for one that waits for leave."""
    echo.begin("use A", {})
    await echo.heard("driver.ask")
    echo.close_input()
    assert await echo.ended() == 0
    assert echo.said("driver.transcript")


async def test_a_sigterm_means_stop(echo: DriverProcess) -> None:
    """It ends in order and with its transcript, also if it was told to stop before."""
    echo.begin("use A", {})
    await echo.heard("driver.ask")
    echo.send("stop", grace=20)
    echo.process.terminate()
    assert await echo.ended() == 0
    assert echo.said("driver.transcript")


async def test_a_sigterm_is_enough(echo: DriverProcess) -> None:
    """Without any word on its standard input."""
    echo.begin("use A", {})
    await echo.heard("driver.ask")
    echo.process.terminate()
    assert await echo.ended() == 0
    assert echo.said("driver.transcript")


async def test_each_step_of_an_end_leaves_time_for_the_next() -> None:
    """Half of what is left of the grace at most, and as much as it likes if there is none."""
    wire = Wire(-1, -1)
    assert wire.within(5) == 5
    wire._stop(Stop(8))
    assert 0 < wire.within(1000) <= 4
    assert wire.within(0.1) == 0.1
    wire._stop(Stop(8000))
    assert wire.within(1000) <= 4


async def test_nonsense_on_the_wire_is_told_and_passed_over(echo: DriverProcess) -> None:
    """The next command is understood."""
    echo.send("fly")
    assert (await echo.heard("agent.error"))["phase"] == "driver"
    echo.begin("say hello", {})
    await echo.heard("driver.result")


async def test_what_the_agent_starts_gets_neither_end_of_the_wire(start_driver: StartDriver) -> None:
    """No descriptor, no PYTHONPATH; the variable that marks the agent's processes stays."""
    driver = await start_driver(module="prying_driver", packages=(PACKAGES, SCRIPTED))
    assert await driver.heard("agent.message") == {"content": "mark= path=no input= open=0 1 2"}
    assert await driver.ended() == 0


async def test_a_driver_that_breaks_says_so_by_its_exit_status(echo: DriverProcess) -> None:
    """And prints why."""
    echo.begin("exit 3", {})
    assert await echo.ended() == 3
