"""The driver's side of the wire: commands are parsed, and events are lines that a worker can read."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from sandherd_drivers.commands import Begin, Decide, Interrupt, Message, Resume, Stop, read_command
from sandherd_drivers.line_encoder import MAX_LINE_BYTES, encode_line
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
def test_line_is_read_as_a_command(line: str, command: Any) -> None:
    """A line of each kind is read as a command, with its optional fields."""
    assert read_command(line.encode()) == command


@pytest.mark.parametrize(("expires_at", "expired"), [(None, False), (1.0, True), (2.0, True), (3.0, False)])
def test_message_expires_at_its_time(expires_at: float | None, expired: bool) -> None:
    """A message is expired from the very second on; one without a time never expires."""
    assert Message("m", "system", "c", expires_at=expires_at).is_expired(2.0) is expired


@pytest.mark.parametrize("line", ["", "[]", "{}", '{"do":"fly"}', '{"do":"message"}', '{"do":"stop","how":1}'])
def test_invalid_command_line_raises(line: str) -> None:
    """A line that is not a command raises ValueError, TypeError or KeyError, and no other error."""
    with pytest.raises((ValueError, TypeError, KeyError)):
        read_command(line.encode() or b"{")


def test_encoded_line_fits_the_limit() -> None:
    """Long texts are truncated and other fields stay; objects, sets, surrogates and infinities are encodable."""
    data = {"content": "x" * 3 * MAX_LINE_BYTES, "turn": 3, "odd": {1: {Path("/p")}, "n": float("inf"), "s": "\ud800"}}
    line = encode_line("agent.message", data)
    read = json.loads(line)["data"]
    assert len(line) <= MAX_LINE_BYTES
    assert line.count(b"\n") == 1
    assert read["turn"] == 3
    assert read["content"].endswith("more characters]")
    assert read["odd"] == {"1": ["/p"], "n": "inf", "s": "?"}


def test_event_that_cannot_be_truncated_becomes_an_error() -> None:
    """An event with too many parts is replaced by an error that names it."""
    line = json.loads(encode_line("agent.message", {"parts": list(range(MAX_LINE_BYTES // 6))}))
    assert line["type"] == "agent.error"
    assert "agent.message" in line["data"]["error"]


async def test_driver_reports_task_from_start_to_transcript(echo: DriverProcess) -> None:
    """The echo driver reports readiness, messages, result, output and transcript, and ends with status 0."""
    echo.begin("say hello\nprint shown", {"kind": "echo"})
    assert (await echo.received("driver.ready"))["session_id"] == "session-1"
    assert (await echo.received("agent.message"))["content"] == "hello"
    assert (await echo.received("driver.result"))["error_type"] is None
    await echo.received("driver.turn", state="idle")
    assert await echo.stop() == 0
    assert echo.output == "shown\n"
    transcript = echo.emitted("driver.transcript")[-1]
    assert Path(transcript["path"]).read_text() == "turn 1\nthe end\n"


async def test_message_is_acknowledged_or_refused(echo: DriverProcess) -> None:
    """A message is acknowledged within a turn and after it, or refused."""
    echo.begin("wait", {})
    await echo.received("driver.turn", state="running")
    name = echo.message("psst")
    assert await echo.received("driver.taken") == {"message": name}
    assert (await echo.received("agent.message"))["content"] == "heard psst"
    echo.send("interrupt")
    await echo.received("driver.turn", state="idle")
    echo.message("say again")
    await echo.received("driver.turn", state="idle", turn=2)
    assert await echo.received("driver.refused", message=echo.message("no"))
    assert len(echo.emitted("driver.result")) == 1


async def test_decision_reaches_its_approval_request(echo: DriverProcess) -> None:
    """A request is granted, denied, or withdrawn by an interrupt; a decision for an unknown request is ignored."""
    echo.begin("use A\nuse B\nuse C", {})
    for count, granted in ((1, True), (2, False)):
        requested = await echo.received("driver.ask", count)
        assert requested["input"] == {"command": "ls"}
        echo.send("decide", approval_id="apr-of-nobody", granted=True, reason=None)
        echo.send("decide", approval_id=requested["approval_id"], granted=granted, reason=f"r{count}")
    await echo.received("driver.ask", 3)
    echo.send("interrupt")
    await echo.received("driver.turn", state="idle")
    contents = [message["content"] for message in echo.emitted("agent.message")]
    assert contents == ["A granted r1", "B denied r2", "C denied the turn was stopped"]


@pytest.mark.parametrize("tool", ["", "x" * 257, "many"])
async def test_invalid_approval_request_is_denied(tool: str) -> None:
    """A tool without a valid name and an input that fits no line are denied at once, without a wait for a user."""
    reading, writing = os.pipe()
    parts = list(range(MAX_LINE_BYTES // 6)) if tool == "many" else []
    decision = await Wire(-1, writing).request_approval(tool, {"parts": parts})
    os.close(writing)
    with os.fdopen(reading) as contents:
        assert len(contents.readlines()) == 1
    assert (decision.granted, decision.reason) == (False, "the request is too large to be shown to a user")


def test_deeply_nested_value_is_replaced() -> None:
    """The line states that a value was nested too deeply, and a worker can read the line."""
    deep: Any = "the core"
    for _ in range(5000):
        deep = [deep]
    line = encode_line("driver.ask", {"tool": "x", "input": {"a": deep}})
    assert "too deeply" in line.decode()
    assert "the core" not in line.decode()
    assert json.loads(line)["type"] == "driver.ask"


async def test_closed_stdin_stops_driver(echo: DriverProcess) -> None:
    """The end of standard input stops the driver, also while it waits for an approval."""
    echo.begin("use A", {})
    await echo.received("driver.ask")
    echo.close_input()
    assert await echo.ended() == 0
    assert echo.emitted("driver.transcript")


async def test_sigterm_stops_the_driver_cleanly(echo: DriverProcess) -> None:
    """The driver stores its transcript and exits with 0, also after an earlier stop command."""
    echo.begin("use A", {})
    await echo.received("driver.ask")
    echo.send("stop", grace=20)
    echo.process.terminate()
    assert await echo.ended() == 0
    assert echo.emitted("driver.transcript")


async def test_sigterm_suffices(echo: DriverProcess) -> None:
    """SIGTERM alone, without a command on standard input, stops the driver."""
    echo.begin("use A", {})
    await echo.received("driver.ask")
    echo.process.terminate()
    assert await echo.ended() == 0
    assert echo.emitted("driver.transcript")


async def test_each_step_of_a_stop_leaves_time_for_the_next() -> None:
    """A step takes half of the remaining grace at most, and any time without one."""
    wire = Wire(-1, -1)
    assert wire.shutdown_timeout(5) == 5
    wire._stop(Stop(8))
    assert 0 < wire.shutdown_timeout(1000) <= 4
    assert wire.shutdown_timeout(0.1) == 0.1
    wire._stop(Stop(8000))
    assert wire.shutdown_timeout(1000) <= 4


async def test_invalid_command_is_reported_and_skipped(echo: DriverProcess) -> None:
    """An unknown command yields an error event, and the next command is executed."""
    echo.send("fly")
    assert (await echo.received("agent.error"))["phase"] == "driver"
    echo.begin("say hello", {})
    await echo.received("driver.result")


async def test_child_process_has_no_wire_descriptor(start_driver: StartDriver) -> None:
    """A process of the agent has no descriptor of the wire and no PYTHONPATH, but it has the agent's mark."""
    driver = await start_driver(module="prying_driver", packages=(PACKAGES, SCRIPTED))
    assert await driver.received("agent.message") == {"content": "mark= path=no input= open=0 1 2"}
    assert await driver.ended() == 0


async def test_exit_status_of_failed_driver_is_reported(echo: DriverProcess) -> None:
    """A driver that fails exits with its status."""
    echo.begin("exit 3", {})
    assert await echo.ended() == 3
