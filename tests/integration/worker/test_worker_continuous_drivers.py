"""A whole worker whose agent continues between iterations: each is another turn of one session."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sandherd.contracts.principals import Principal
from sandherd_worker.worker_exit import ExitCode
from tests.integration.worker.test_worker_continuous import check, end_of, kinds, letter

ECHO = Path(__file__).parents[2] / "drivers" / "scripted" / "echo_driver"

Echo = Callable[..., Any]


@pytest.fixture
def echo(sandbox: Any, tmp_path: Path) -> Echo:
    """A sandbox whose agent is the echo driver, which does what the lines of the check's output say."""

    def make(*task: str, **fields: Any) -> Any:
        packages, python = tmp_path / "packages", tmp_path / "toolchains" / "acp" / "bin" / "python"
        python.parent.mkdir(parents=True)
        packages.mkdir()
        (packages / "echo_driver").symlink_to(ECHO)
        run = f'export PYTHONPATH="$PYTHONPATH:{packages}"\nexec {sys.executable} -P -m echo_driver'
        python.write_text(f"#!/bin/sh\n{run}\n")
        python.chmod(0o755)
        spec = {"text": "\n".join(task), "harness": {"kind": "acp", "argv": ["agent"]}, **fields}
        (sandbox.state / "task.json").write_text(json.dumps(spec))
        sandbox.environment["SANDHERD_TOOLCHAINS"] = str(tmp_path / "toolchains")
        return sandbox

    return make


def contents(events: list[Any]) -> list[str]:
    return [event.data.content for event in events if event.type == "agent.message"]


async def test_further_iteration_is_a_further_turn(echo: Echo) -> None:
    """The session continues; the agent gets the check's output, and the end sums up both turns."""
    sandbox = echo("say one", "usage 1 2 30", continuous=check("echo say two; test -e again || ! touch again"))
    assert await sandbox.run() == ExitCode.DRAINED
    events = await sandbox.events()
    assert contents(events) == ["one", "two"]
    turn = ["turn_started", "message", "turn_completed", "iteration_completed"]
    validated = ["tool_use", "tool_result", "tool_completed", "iteration_validated"]
    first = [*turn[:2], "usage", *turn[2:]]
    assert kinds(events) == [
        "started",
        *("iteration_started", *first, *validated),
        *("iteration_started", *turn, *validated),
        "completed",
        "shutdown",
    ]
    second = (await sandbox.events("iteration_started"))[1].data
    assert (second.iteration_num, second.last_session_id, second.total_cost_micro_usd) == (2, "session-1", 30)
    ended = await end_of(sandbox)
    assert (ended.turns, ended.cost_micro_usd, ended.validation_passed) == (2, 30, True)
    assert (ended.session_id, ended.final_output) == ("session-1", "two")


async def test_message_of_an_agent_is_its_signal(echo: Echo) -> None:
    """A signal counts in a message, not in printed output or in the prompt, which contains it."""
    sandbox = echo("print FINISHED", continuous={"completion_signal": "FINISHED", "max_iterations": 2})
    assert await sandbox.run() == ExitCode.DRAINED
    assert (await end_of(sandbox)).stop_reason == "max_iterations_reached"


async def test_signalled_iteration_is_validated(echo: Echo) -> None:
    """With a signal and a check, an iteration without the signal is not checked."""
    sandbox = echo("say I am FINISHED", continuous=check("true", completion_signal="FINISHED"))
    assert await sandbox.run() == ExitCode.DRAINED
    ended = await end_of(sandbox)
    assert (ended.stop_reason, ended.validation_passed) == ("validation_passed", True)


async def test_failing_agent_is_restarted(echo: Echo) -> None:
    """A failure of the agent is the iteration's and not the attempt's; the count of turns continues."""
    sandbox = echo("say here", "exit 3", continuous=check("true", max_consecutive_errors=2))
    assert await sandbox.run() == ExitCode.DRAINED
    events = await sandbox.events()
    assert contents(events) == ["here", "here"]
    assert [event.data.turn for event in events if event.type == "agent.turn_started"] == [1, 2]
    failed = [event.data for event in events if event.type == "agent.iteration_failed"]
    assert [(one.error_type, one.error_count) for one in failed] == [("exit_status", 1), ("exit_status", 2)]
    ended = await end_of(sandbox)
    assert (ended.error_type, ended.stop_reason, ended.exit_code) == ("exit_status", "consecutive_errors", 3)


async def test_agent_killed_in_a_later_turn_is_restarted(echo: Echo) -> None:
    """A new agent gets the reason of the failure, and the earlier prompt."""
    sandbox = echo("say one", continuous=check("echo die; test -e twice || ! touch twice", max_iterations=3))
    assert await sandbox.run() == ExitCode.DRAINED
    (failed,) = [event.data for event in await sandbox.events("iteration_failed")]
    assert (failed.iteration_num, failed.error_type) == (2, "signal")
    assert contents(await sandbox.events()) == ["one", "one"]
    assert (await end_of(sandbox)).validation_passed


async def test_failed_turn_is_a_failed_iteration(echo: Echo) -> None:
    """After a failed turn the session continues with the next iteration."""
    broken = json.dumps({"type": "agent.error", "data": {"error": "the model is away", "phase": "end_turn"}})
    sandbox = echo("say one", continuous=check(f"echo 'raw {broken}'; test -e again || ! touch again"))
    assert await sandbox.run() == ExitCode.DRAINED
    (failed,) = await sandbox.events("iteration_failed")
    assert (failed.data.iteration_num, failed.data.error) == (2, "the model is away")
    ended = await end_of(sandbox)
    assert (ended.validation_passed, ended.turns) == (True, 3)


async def test_hanging_turn_is_ended_by_the_time_limit(echo: Echo) -> None:
    """A turn that hangs is stopped at the time limit, and its work is not checked."""
    sandbox = echo("wait", continuous=check("true", max_duration_seconds=1))
    assert await sandbox.run() == ExitCode.DRAINED
    ended = await end_of(sandbox)
    assert (ended.error_type, ended.stop_reason) == ("limit_reached", "max_duration_reached")


async def test_messages_reach_a_later_turn_and_follow_the_end(echo: Echo, herd: Any, eventually: Any) -> None:
    """A message in the second turn reaches it; one after the end is a follow-up, which is not checked."""
    sandbox = echo("say one", continuous=check("echo wait; test -e again || ! touch again"), linger_seconds=600)
    await sandbox.start()

    async def waits_again() -> bool:
        return len(await sandbox.events("turn_started")) == 2

    await eventually(waits_again, "the second turn")
    async with herd.bus(Principal.MESSAGE_RELAY) as relay:
        assert (await sandbox.deliver(relay, letter("you"))).outcome == "acknowledged"
        assert (await sandbox.deliver(relay, letter("say stop", "interrupt"))).outcome == "acknowledged"
        await sandbox.event("waiting")
        assert (await sandbox.deliver(relay, letter("say after"))).outcome == "acknowledged"

    async def after() -> bool:
        return contents(await sandbox.events())[-1] == "after"

    await eventually(after, "the follow-up")
    sandbox.process.terminate()
    assert await sandbox.ended() == ExitCode.DRAINED
    assert contents(await sandbox.events()) == ["one", "heard you", "stop", "after"]
    assert (await end_of(sandbox)).validation_passed
    assert len(await sandbox.events("iteration_validated")) == 2


async def test_missing_sdk_is_reported_with_its_installation(echo: Echo) -> None:
    """Without the SDK the failure is the same as that of a task without iterations."""
    sandbox = echo("say hello", continuous=check("true"))
    sandbox.environment["SANDHERD_TOOLCHAINS"] = "/nowhere"
    assert await sandbox.run() == ExitCode.DRAINED
    ended = await end_of(sandbox)
    assert ended.error_type == "start"
    assert "`sandherd harness install acp`" in ended.error
