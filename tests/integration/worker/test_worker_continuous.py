"""A whole worker whose agent goes round: a program that is run again, until its work is valid or a limit is reached."""

import asyncio
import signal
from datetime import UTC, datetime, timedelta
from typing import Any

from sandherd.contracts.delivery import InboxMessage
from sandherd.contracts.names import new_name
from sandherd.contracts.principals import Principal
from sandherd_worker.exits import ExitCode

ENDS = {"completed", "failed"}


def letter(content: str, kind: Any = "user_message") -> InboxMessage:
    now = datetime.now(UTC)
    return InboxMessage(
        message=new_name("msg"),
        project="default",
        sandbox="sbx-1",
        content=content,
        message_type=kind,
        sent_at=now,
        expires_at=now + timedelta(hours=1),
    )


def kinds(events: list[Any]) -> list[str]:
    passed_over = {"heartbeat", "file_edited", "transcript_saved", "work_saved"}
    found = [event.type.removeprefix("agent.") for event in events]
    return [kind for kind in found if kind not in passed_over]


def check(command: str, **fields: Any) -> dict[str, Any]:
    return {"validation": {"command": command}, **fields}


async def end_of(sandbox: Any) -> Any:
    """The one end of the attempt."""
    (ended,) = await sandbox.events(*ENDS)
    return ended.data


async def test_it_goes_round_until_its_work_is_valid(sandbox: Any) -> None:
    """Each iteration has its events in order, the check is a tool call, and its output is told to the next run."""
    sandbox.task(
        'echo "$SANDHERD_ITERATION:$SANDHERD_FEEDBACK"; echo x >> work.txt',
        continuous=check("echo lines: $(wc -l < work.txt); test $(wc -l < work.txt) -ge 2"),
    )
    assert await sandbox.run() == ExitCode.DRAINED
    run = ["turn_started", "tool_use", "tool_result", "tool_completed", "turn_completed"]
    judged = ["iteration_completed", "tool_use", "tool_result", "tool_completed", "iteration_validated"]
    once = ["iteration_started", *run, *judged]
    events = await sandbox.events()
    assert kinds(events) == ["started", *once, *once, "completed", "shutdown"]
    calls = [event.data.tool for event in events if event.type == "agent.tool_use"]
    assert calls == ["command", "validation"] * 2
    assert [event.data.turn for event in events if event.type == "agent.turn_started"] == [1, 2]
    first, second = await sandbox.events("iteration_validated")
    assert (first.data.passed, first.data.errors, first.data.stop_reason) == (
        False,
        ["it ended with exit status 1"],
        None,
    )
    assert (second.data.passed, second.data.stop_reason, second.data.successful_iterations) == (
        True,
        "validation_passed",
        2,
    )
    ended = await end_of(sandbox)
    assert (ended.validation_passed, ended.stop_reason, ended.turns) == (True, "validation_passed", 2)
    told = "2:The check of your work failed: it ended with exit status 1."
    assert told in (shown := await sandbox.output())
    assert shown.count("lines: 1") == 2


async def test_without_an_end_it_fails_at_its_last_iteration(sandbox: Any) -> None:
    """The failure names the limit, and says how often it went round; the task is not tried again for it."""
    sandbox.task("true", continuous=check("exit 7", max_iterations=3))
    assert await sandbox.run() == ExitCode.DRAINED
    ended = await end_of(sandbox)
    assert (ended.error_type, ended.stop_reason, ended.turns) == ("limit_reached", "max_iterations_reached", 3)
    assert "not done after 3 iterations" in ended.error
    last = (await sandbox.events("iteration_validated"))[-1].data
    assert (last.iteration_num, last.stop_reason, last.validation_passed) == (3, "max_iterations_reached", False)


async def test_what_the_program_prints_is_its_signal(sandbox: Any) -> None:
    """Also when it comes in pieces; without a validation it is believed, in so many iterations as are asked for."""
    sandbox.python(
        "import os, time\nprint('now ALL ', end='', flush=True)\n"
        "print('DONE' if os.environ['SANDHERD_ITERATION'] != '1' else 'over')",
        continuous={"completion_signal": "ALL DONE", "completion_threshold": 2},
    )
    assert await sandbox.run() == ExitCode.DRAINED
    counts = [event.data.completion_signal_count for event in await sandbox.events("iteration_completed")]
    assert counts == [0, 1, 2]
    ended = await end_of(sandbox)
    assert (ended.type, ended.stop_reason, ended.validation_passed) == ("agent.completed", "completion_signal", None)


async def test_errors_in_a_row_end_it_as_the_last_of_them(sandbox: Any) -> None:
    """Each is an iteration that failed, which nobody judges; the next is told why."""
    sandbox.task('echo "$SANDHERD_FEEDBACK"; exit 4', continuous=check("true", max_consecutive_errors=2))
    assert await sandbox.run() == ExitCode.DRAINED
    failed = [event.data for event in await sandbox.events("iteration_failed")]
    assert [(one.iteration_num, one.error_type, one.error_count) for one in failed] == [
        (1, "exit_status", 1),
        (2, "exit_status", 2),
    ]
    assert await sandbox.events("iteration_validated") == []
    ended = await end_of(sandbox)
    assert (ended.error_type, ended.exit_code, ended.stop_reason) == ("exit_status", 4, "consecutive_errors")
    assert "The iteration before failed: it ended with exit status 4" in await sandbox.output()


async def test_a_program_that_can_not_be_started_is_named(sandbox: Any) -> None:
    """It is an error like any other, and the end says what it was."""
    sandbox.program(["/nowhere/agent"], continuous=check("true"))
    assert await sandbox.run() == ExitCode.DRAINED
    ended = await end_of(sandbox)
    assert (ended.error_type, ended.stop_reason) == ("start", "consecutive_errors")
    assert "/nowhere/agent" in ended.error


async def test_its_time_ends_an_iteration_in_its_midst(sandbox: Any) -> None:
    """An agent that hangs is ended, and is not judged."""
    sandbox.task("sleep 600", continuous=check("true", max_duration_seconds=1))
    assert await sandbox.run() == ExitCode.DRAINED
    (failed,) = await sandbox.events("iteration_failed")
    assert failed.data.error_type == "max_duration_reached"
    ended = await end_of(sandbox)
    assert (ended.error_type, ended.stop_reason) == ("limit_reached", "max_duration_reached")


async def test_its_cost_ends_it_after_what_it_bought_is_judged(sandbox: Any) -> None:
    """Costs are summed over all iterations, and the end has the sum."""
    sandbox.task(
        """printf '{"type":"agent.usage","data":{"cost_micro_usd":60}}\\n' >&3""",
        continuous=check("false", max_cost_micro_usd=100),
    )
    assert await sandbox.run() == ExitCode.DRAINED
    completed = [event.data for event in await sandbox.events("iteration_completed")]
    assert [(one.cost_micro_usd, one.total_cost_micro_usd) for one in completed] == [(60, 60), (60, 120)]
    ended = await end_of(sandbox)
    assert (ended.stop_reason, ended.cost_micro_usd) == ("max_cost_reached", 120)


async def test_a_check_that_does_not_end_is_ended(sandbox: Any) -> None:
    """With all that it has started; the work is not valid, and the agent is told so."""
    validation = {"command": "sleep 600 & sleep 600", "timeout_seconds": 1}
    sandbox.task("true", continuous={"validation": validation, "max_iterations": 1})
    assert await sandbox.run() == ExitCode.DRAINED
    (judged,) = await sandbox.events("iteration_validated")
    assert judged.data.errors == ["it did not end within 1 s"]


async def test_a_check_gets_no_input_and_says_nothing_in_the_agents_name(sandbox: Any) -> None:
    """It reads an empty standard input, and events on its descriptor are not the agent's."""
    command = (
        """printf '{"type":"agent.message","data":{"content":"x","content_length":1}}\\n' >&3; test -z "$(cat)" """
    )
    sandbox.task("true", continuous=check(command))
    assert await sandbox.run() == ExitCode.DRAINED
    assert (await end_of(sandbox)).validation_passed
    assert await sandbox.events("message") == []


async def test_a_message_between_two_iterations_reaches_the_next(sandbox: Any, herd: Any) -> None:
    """It waits while the work is judged; heartbeats go on, and say that the agent runs."""
    sandbox.task(
        'if [ "$SANDHERD_ITERATION" = 2 ]; then read line; echo "$line" > heard.txt; fi',
        continuous=check("touch checking; cat heard.txt && exit 0; mkfifo gate 2>/dev/null; read go < gate; false"),
    )
    await sandbox.start(HEARTBEAT_INTERVAL="0.1")
    await sandbox.event("iteration_completed")
    async with herd.bus(Principal.MESSAGE_RELAY) as relay:
        delivering = asyncio.ensure_future(sandbox.deliver(relay, letter("also this")))
        assert (await sandbox.exec("sh", "-c", "until [ -p gate ]; do :; done; echo go > gate")).exit_code == 0
        assert (await delivering).outcome == "acknowledged"
    assert await sandbox.ended() == ExitCode.DRAINED
    assert (await end_of(sandbox)).validation_passed
    assert "also this" in await sandbox.output()
    assert {beat.data.status for beat in await sandbox.events("heartbeat")} <= {"alive", "running"}


async def test_sigterm_ends_it_in_the_middle_of_a_check(sandbox: Any) -> None:
    """With one end, which may be tried again, and nothing of the check is left."""
    sandbox.task("true", continuous=check("touch checking; sleep 600"))
    await sandbox.start()
    await sandbox.event("iteration_completed")
    await sandbox.exec("sh", "-c", "until [ -e checking ]; do :; done")
    sandbox.signal(signal.SIGTERM)
    assert await sandbox.ended() == ExitCode.DRAINED
    ended = await end_of(sandbox)
    assert (ended.error_type, ended.stop_reason) == ("stopped", "shutdown_signal")
    (judged,) = await sandbox.events("iteration_validated")
    assert (judged.data.passed, judged.data.stop_reason) == (False, "shutdown_signal")


async def test_secrets_of_a_check_are_not_said(sandbox: Any) -> None:
    """Neither in its call nor in its output nor in what the agent is told of it."""
    sandbox.task(
        "true",
        env={"TOKEN": "hunter2-hunter2"},
        secret_env=["TOKEN"],
        continuous=check("echo $TOKEN hunter2-hunter2; false", max_iterations=1),
    )
    assert await sandbox.run() == ExitCode.DRAINED
    assert "hunter2" not in repr(await sandbox.events()) + await sandbox.output()
