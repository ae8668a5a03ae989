"""How a driver ends, and what its harness makes of that."""

import asyncio
import json
import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from sandherd_worker.harnesses.base import CannotTakeError
from sandherd_worker.processes import descendants
from tests.unit.worker.echoing import Make, Worker, message, said


async def test_a_failure_that_the_driver_tells_is_the_attempts(make: Make) -> None:
    """With its text and its kind."""
    harness = make("fail it is not my day")
    await harness.start()
    done = await harness.done()
    assert (done.error_type, done.error) == ("internal", "it is not my day")


@pytest.mark.parametrize(
    ("word", "error_type", "code", "killed_by", "stream_error"),
    [
        ("die", "signal", None, 9, "sigkill"),
        ("exit 3", "exit_status", 3, None, "command_failed"),
        ("exit 0", "internal", 0, None, "command_failed"),
    ],
)
async def test_a_driver_that_dies_fails_its_attempt(
    make: Make,
    listener: Any,
    word: str,
    error_type: str,
    code: int | None,
    killed_by: int | None,
    stream_error: str,
) -> None:
    """It is said that it broke off, and judged as any program is; what waits for it is refused."""
    harness = make("usage 1 1 1", "say up", word)
    await harness.start()
    ended = await harness.ended()
    assert (ended.error_type, ended.exit_code, ended.signal) == (error_type, code, killed_by)
    assert (ended.used["cost_micro_usd"], ended.session_id) == (1, "session-1")
    broke = [event for event in listener.events if event.type == "agent.stream_error"]
    assert [event.error_type for event in broke] == [stream_error]
    with pytest.raises(CannotTakeError, match="has ended"):
        await harness.inject(message("x"))


async def test_a_kill_for_memory_is_no_ordinary_kill(make: Make) -> None:
    """If the kernel's counter has moved, a kill -9 was for memory."""
    counts = iter((4, 5))
    harness = make("die", kills=lambda: next(counts))
    await harness.start()
    assert (await harness.done()).error_type == "out_of_memory"


@pytest.mark.parametrize(
    ("counts", "told", "error_type", "number"),
    [
        ((4, 5), 9, "out_of_memory", 9),
        ((4, 4), 9, "signal", 9),
        ((4, 5), 15, "signal", 15),
        ((4, 5), None, "out_of_memory", 9),
        ((4, 4), None, "signal", None),
    ],
)
async def test_a_kill_of_the_agent_below_its_driver_is_judged_too(
    make: Make, counts: tuple[int, int], told: int | None, error_type: str, number: int | None
) -> None:
    """The kernel kills the largest process, and that is the agent; its driver lives to say that it was a signal."""
    seen = iter(counts)
    data = {"error_type": "signal", "error": "the agent was killed by SIGKILL", "signal": told}
    harness = make(f"raw {json.dumps({'type': 'driver.result', 'data': data})}", kills=lambda: next(seen, counts[1]))
    await harness.start()
    done = await harness.done()
    assert (done.error_type, done.signal) == (error_type, number)
    assert done.error.endswith("the agent was killed by SIGKILL")


async def test_a_driver_that_reads_nothing_keeps_nobody_waiting(make: Make) -> None:
    """A task that is more than a pipe holds waits for it, the worker does not: it hears, and can end it."""
    harness = make("say " + "x" * 200_000, python="/bin/sh", arguments=("-c", "trap '' TERM; sleep 600; :"))
    await harness.start()
    await harness.stop(0.2)
    assert (await harness.ended()).error_type == "stopped"


async def test_a_long_task_is_given_whole_and_first(make: Make, listener: Any) -> None:
    """Whatever else it is told at once."""
    harness = make("say " + "x" * 200_000)
    await harness.start()
    await harness.interrupt()
    await harness.inject(message("say on"))
    await harness.done()
    assert said(listener)[0] == "x" * 200_000


async def test_a_driver_that_is_killed_has_its_transcript_kept_as_it_is(
    make: Make, worker: Worker, tmp_path: Path
) -> None:
    """With what came into it since the driver last named it."""
    harness = make("say one")
    await harness.start()
    await harness.done()
    with (tmp_path / "driver" / "session.jsonl").open("a") as file:
        file.write("turn 2, so far\n")
    with suppress(CannotTakeError):
        await harness.inject(message("die"))
    await harness.ended()
    assert worker.kept == [("turn 1\n", "session-1"), ("turn 1\nturn 2, so far\n", "session-1")]


async def test_a_transcript_that_was_only_named_is_kept_when_the_driver_is_killed(
    make: Make, worker: Worker, tmp_path: Path
) -> None:
    """In its first turn, too; its place may be as long as the kernel takes."""
    session = tmp_path / ("long" * 50) / ("long" * 50) / "session.jsonl"
    session.parent.mkdir(parents=True)
    session.write_text("so far\n")
    named = {"type": "driver.transcript", "data": {"path": str(session), "session_id": "session-1", "keep": False}}
    harness = make(f"raw {json.dumps(named)}", "die")
    await harness.start()
    await harness.ended()
    assert worker.kept == [("so far\n", "session-1")]


async def test_a_message_on_its_way_is_refused_when_the_agent_dies(make: Make, listener: Any, eventually: Any) -> None:
    """Nobody waits for a receipt that can't come."""
    harness = make("say up", "wait")
    await harness.start()
    await eventually(lambda: "up" in said(listener), "the turn runs")
    (driver,) = [
        process for process in descendants() if b"echo_driver" in Path(f"/proc/{process}/cmdline").read_bytes()
    ]
    os.kill(driver, signal.SIGSTOP)
    waiting = asyncio.ensure_future(harness.inject(message("x")))
    await asyncio.sleep(0)
    os.kill(driver, signal.SIGKILL)
    with pytest.raises(CannotTakeError, match="has ended"):
        await waiting


async def test_a_driver_that_dies_after_its_task_changes_nothing(
    make: Make, listener: Any, worker: Worker, eventually: Any
) -> None:
    """The end is the one that was; it is said that the program broke off, and that nothing is being done."""
    harness = make("say one")
    await harness.start()
    done = await harness.done()
    await harness.inject(message("die"))
    await harness.ended()
    assert await harness.done() == done
    assert "stream_error" in listener.types()
    assert worker.turns[-1] == (2, False)
    assert not harness.follows_up


async def test_a_stop_before_the_end_is_a_stop(make: Make, listener: Any, eventually: Any, worker: Worker) -> None:
    """In order, with the transcript; nothing is said to have broken."""
    harness = make("say up", "wait")
    await harness.start()
    await eventually(lambda: "up" in said(listener), "the turn runs")
    await harness.stop(20)
    assert (await harness.ended()).error_type == "stopped"
    assert "stream_error" not in listener.types()
    assert worker.kept == [("the end\n", "session-1")]


async def test_a_stubborn_driver_is_ended_by_force(make: Make, listener: Any, eventually: Any) -> None:
    """One that does not listen is killed when the grace is over, with all that it started."""
    before = descendants()
    harness = make("say up", "spawn trap '' TERM; sleep 600", "hang")
    await harness.start()
    await eventually(lambda: "up" in said(listener), "the turn runs")
    await harness.stop(0.2)
    assert (await harness.ended()).error_type == "stopped"
    assert not descendants() - before


async def test_a_driver_that_is_not_there_is_a_failed_start(make: Make) -> None:
    """With the reason in words."""
    harness = make("x", python="/nowhere/python")
    await harness.start()
    done = await harness.done()
    assert (done.error_type, done.error) == ("start", "/nowhere/python: No such file or directory")
    assert not harness.follows_up
    with pytest.raises(CannotTakeError, match="could not be started"):
        await harness.inject(message("x"))
