"""A whole worker with iterations: a program is run repeatedly until its work is valid or a limit is reached."""

import asyncio
import signal
from datetime import UTC, datetime, timedelta
from typing import Any

from sandherd.contracts.inbox_messages import InboxMessage
from sandherd.contracts.names import new_name
from sandherd.contracts.principals import Principal
from sandherd_worker.worker_exit import ExitCode

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
    """The only end of the attempt."""
    (ended,) = await sandbox.events(*ENDS)
    return ended.data


async def test_iterations_continue_until_the_work_is_valid(sandbox: Any) -> None:
    """Each iteration has its events in order, the check is a tool call, and the next run gets its output."""
    sandbox.task(
        'echo "$SANDHERD_ITERATION:$SANDHERD_FEEDBACK"; echo x >> work.txt',
        continuous=check("echo lines: $(wc -l < work.txt); test $(wc -l < work.txt) -ge 2"),
    )
    assert await sandbox.run() == ExitCode.DRAINED
    run = ["turn_started", "tool_use", "tool_result", "tool_completed", "turn_completed"]
    validated = ["iteration_completed", "tool_use", "tool_result", "tool_completed", "iteration_validated"]
    once = ["iteration_started", *run, *validated]
    events = await sandbox.events()
    assert kinds(events) == ["started", *once, *once, "completed", "shutdown"]
    calls = [event.data.tool for event in events if event.type == "agent.tool_use"]
    assert calls == ["command", "validation"] * 2
    assert [event.data.turn for event in events if event.type == "agent.turn_started"] == [1, 2]
    judgements = [event.data for event in events if event.type == "agent.tool_result"][1::2]
    assert [(one.outcome, one.exit_code) for one in judgements] == [("failed", 1), ("ok", 0)]
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
    prompt = "2:The check of your work failed: it ended with exit status 1."
    assert prompt in (shown := await sandbox.output())
    assert shown.count("lines: 1") == 2


async def test_iterations_without_success_fail_at_their_limit(sandbox: Any) -> None:
    """The failure names the limit and the number of iterations; the task is not retried."""
    sandbox.task("true", continuous=check("exit 7", max_iterations=3))
    assert await sandbox.run() == ExitCode.DRAINED
    ended = await end_of(sandbox)
    assert (ended.error_type, ended.stop_reason, ended.turns) == ("limit_reached", "max_iterations_reached", 3)
    assert "not completed after 3 iterations" in ended.error
    last = (await sandbox.events("iteration_validated"))[-1].data
    assert (last.iteration_num, last.stop_reason, last.validation_passed) == (3, "max_iterations_reached", False)


async def test_printed_signal_of_a_program_completes_it(sandbox: Any) -> None:
    """A signal also counts if it is printed in parts; without a check it must occur as often as configured."""
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


async def test_consecutive_errors_end_with_the_last_of_them(sandbox: Any) -> None:
    """Each error is a failed iteration without a check; the next iteration gets the reason, the end the last one."""
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
    assert "The previous iteration failed: it ended with exit status 4" in await sandbox.output()


async def test_program_that_cannot_start_is_reported(sandbox: Any) -> None:
    """The error of a program that can't start counts like any other, and the end names it."""
    sandbox.program(["/nowhere/agent"], continuous=check("true"))
    assert await sandbox.run() == ExitCode.DRAINED
    ended = await end_of(sandbox)
    assert (ended.error_type, ended.stop_reason) == ("start", "consecutive_errors")
    assert "/nowhere/agent" in ended.error


async def test_time_limit_ends_an_iteration_midway(sandbox: Any) -> None:
    """An agent that hangs is ended at the time limit, and its work is not checked."""
    sandbox.task("sleep 600", continuous=check("true", max_duration_seconds=1))
    assert await sandbox.run() == ExitCode.DRAINED
    (failed,) = await sandbox.events("iteration_failed")
    assert failed.data.error_type == "max_duration_reached"
    ended = await end_of(sandbox)
    assert (ended.error_type, ended.stop_reason) == ("limit_reached", "max_duration_reached")


async def test_cost_limit_stops_after_the_work_is_judged(sandbox: Any) -> None:
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


async def test_hanging_check_is_ended(sandbox: Any) -> None:
    """A check that hangs is ended with its children; the work is invalid, and the agent gets that as feedback."""
    validation = {"command": "sleep 600 & sleep 600", "timeout_seconds": 1}
    sandbox.task("true", continuous={"validation": validation, "max_iterations": 1})
    assert await sandbox.run() == ExitCode.DRAINED
    (validated,) = await sandbox.events("iteration_validated")
    assert validated.data.errors == ["it did not end within 1 s"]


async def test_check_has_no_input_and_no_events(sandbox: Any) -> None:
    """The standard input of a check is empty, and what it writes to the events pipe is not an event of the agent."""
    command = (
        """printf '{"type":"agent.message","data":{"content":"x","content_length":1}}\\n' >&3; test -z "$(cat)" """
    )
    sandbox.task("true", continuous=check(command))
    assert await sandbox.run() == ExitCode.DRAINED
    assert (await end_of(sandbox)).validation_passed
    assert await sandbox.events("message") == []


async def test_message_between_two_iterations_reaches_the_next(sandbox: Any, herd: Any) -> None:
    """A message waits while the work is checked; heartbeats continue and report a running agent."""
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


async def test_sigterm_ends_iterations_during_a_check(sandbox: Any) -> None:
    """After a SIGTERM there is one end, which may be retried, and no process of the check is left."""
    sandbox.task("true", continuous=check("touch checking; sleep 600"))
    await sandbox.start()
    await sandbox.event("iteration_completed")
    await sandbox.exec("sh", "-c", "until [ -e checking ]; do :; done")
    sandbox.signal(signal.SIGTERM)
    assert await sandbox.ended() == ExitCode.DRAINED
    ended = await end_of(sandbox)
    assert (ended.error_type, ended.stop_reason) == ("stopped", "shutdown_signal")
    (validated,) = await sandbox.events("iteration_validated")
    assert (validated.data.passed, validated.data.stop_reason) == (False, "shutdown_signal")


async def test_secrets_of_a_check_are_redacted(sandbox: Any) -> None:
    """A secret is in neither the call of a check, nor its output, nor the feedback to the agent."""
    sandbox.task(
        "true",
        env={"TOKEN": "hunter2-hunter2"},
        secret_env=["TOKEN"],
        continuous=check("echo $TOKEN hunter2-hunter2; false", max_iterations=1),
    )
    assert await sandbox.run() == ExitCode.DRAINED
    assert "hunter2" not in repr(await sandbox.events()) + await sandbox.output()
