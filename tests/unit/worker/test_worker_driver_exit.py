"""The exit of a driver, and the result of its harness."""

import asyncio
import json
import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from sandherd_worker.harnesses.base import MessageRefusedError
from sandherd_worker.processes import descendants
from tests.unit.worker.echo_harness import Make, Worker, message, published


async def test_failure_reported_by_the_driver_is_the_result(make: Make) -> None:
    """The result has the driver's error type and text."""
    harness = make("fail it is not my day")
    await harness.start()
    done = await harness.wait_done()
    assert (done.error_type, done.error) == ("internal", "it is not my day")


@pytest.mark.parametrize(
    ("word", "error_type", "code", "killed_by", "stream_error"),
    [
        ("die", "signal", None, 9, "sigkill"),
        ("exit 3", "exit_status", 3, None, "command_failed"),
        ("exit 0", "internal", 0, None, "command_failed"),
    ],
)
async def test_driver_that_dies_fails_its_attempt(
    make: Make,
    listener: Any,
    word: str,
    error_type: str,
    code: int | None,
    killed_by: int | None,
    stream_error: str,
) -> None:
    """A stream error is published, the exit is judged as any program's, and waiting messages are refused."""
    harness = make("usage 1 1 1", "say up", word)
    await harness.start()
    ended = await harness.ended()
    assert (ended.error_type, ended.exit_code, ended.signal) == (error_type, code, killed_by)
    assert (ended.used["cost_micro_usd"], ended.session_id) == (1, "session-1")
    broke = [event for event in listener.events if event.type == "agent.stream_error"]
    assert [event.error_type for event in broke] == [stream_error]
    with pytest.raises(MessageRefusedError, match="has ended"):
        await harness.inject(message("x"))


async def test_oom_kill_is_distinguished_from_sigkill(make: Make) -> None:
    """A SIGKILL is out of memory if the kernel's counter has moved."""
    counts = iter((4, 5))
    harness = make("die", kills=lambda: next(counts))
    await harness.start()
    assert (await harness.wait_done()).error_type == "out_of_memory"


@pytest.mark.parametrize(
    ("counts", "reported", "error_type", "number"),
    [
        ((4, 5), 9, "out_of_memory", 9),
        ((4, 4), 9, "signal", 9),
        ((4, 5), 15, "signal", 15),
        ((4, 5), None, "out_of_memory", 9),
        ((4, 4), None, "signal", None),
    ],
)
async def test_killed_agent_below_its_driver_is_judged(
    make: Make, counts: tuple[int, int], reported: int | None, error_type: str, number: int | None
) -> None:
    """The kernel kills the largest process, the agent; its driver survives to report the signal."""
    seen = iter(counts)
    data = {"error_type": "signal", "error": "the agent was killed by SIGKILL", "signal": reported}
    harness = make(f"raw {json.dumps({'type': 'driver.result', 'data': data})}", kills=lambda: next(seen, counts[1]))
    await harness.start()
    done = await harness.wait_done()
    assert (done.error_type, done.signal) == (error_type, number)
    assert done.error.endswith("the agent was killed by SIGKILL")


async def test_driver_that_reads_nothing_does_not_block_the_worker(make: Make) -> None:
    """A task larger than a pipe waits for the driver, and the worker can still stop it."""
    harness = make("say " + "x" * 200_000, python="/bin/sh", arguments=("-c", "trap '' TERM; sleep 600; :"))
    await harness.start()
    await harness.stop(0.2)
    assert (await harness.ended()).error_type == "stopped"


async def test_long_task_is_written_whole_and_first(make: Make, listener: Any) -> None:
    """The whole task is written before commands that are sent immediately after the start."""
    harness = make("say " + "x" * 200_000)
    await harness.start()
    await harness.interrupt()
    await harness.inject(message("say on"))
    await harness.wait_done()
    assert published(listener)[0] == "x" * 200_000


async def test_transcript_of_killed_driver_is_stored(make: Make, worker: Worker, tmp_path: Path) -> None:
    """The transcript includes what was appended after the driver last named it."""
    harness = make("say one")
    await harness.start()
    await harness.wait_done()
    with (tmp_path / "driver" / "session.jsonl").open("a") as file:
        file.write("turn 2, so far\n")
    with suppress(MessageRefusedError):
        await harness.inject(message("die"))
    await harness.ended()
    assert worker.recorded == [("turn 1\n", "session-1"), ("turn 1\nturn 2, so far\n", "session-1")]


async def test_transcript_named_but_not_stored_is_stored_after_a_kill(
    make: Make, worker: Worker, tmp_path: Path
) -> None:
    """The transcript of a first turn is stored too; its path may be as long as the kernel permits."""
    session = tmp_path / ("long" * 50) / ("long" * 50) / "session.jsonl"
    session.parent.mkdir(parents=True)
    session.write_text("so far\n")
    named = {"type": "driver.transcript", "data": {"path": str(session), "session_id": "session-1", "keep": False}}
    harness = make(f"raw {json.dumps(named)}", "die")
    await harness.start()
    await harness.ended()
    assert worker.recorded == [("so far\n", "session-1")]


async def test_message_in_delivery_is_refused_when_the_agent_dies(make: Make, listener: Any, eventually: Any) -> None:
    """The delivery does not wait for a receipt that cannot come."""
    harness = make("say up", "wait")
    await harness.start()
    await eventually(lambda: "up" in published(listener), "the turn runs")
    (driver,) = [
        process for process in descendants() if b"echo_driver" in Path(f"/proc/{process}/cmdline").read_bytes()
    ]
    os.kill(driver, signal.SIGSTOP)
    waiting = asyncio.ensure_future(harness.inject(message("x")))
    await asyncio.sleep(0)
    os.kill(driver, signal.SIGKILL)
    with pytest.raises(MessageRefusedError, match="has ended"):
        await waiting


async def test_driver_that_dies_after_its_task_keeps_the_result(
    make: Make, listener: Any, worker: Worker, eventually: Any
) -> None:
    """The result stands; a stream error and the end of the turn are published."""
    harness = make("say one")
    await harness.start()
    done = await harness.wait_done()
    await harness.inject(message("die"))
    await harness.ended()
    assert await harness.wait_done() == done
    assert "stream_error" in listener.types()
    assert worker.turns[-1] == (2, False)
    assert not harness.follows_up


async def test_stop_before_the_end_is_a_stop(make: Make, listener: Any, eventually: Any, worker: Worker) -> None:
    """The transcript is stored; no stream error is published."""
    harness = make("say up", "wait")
    await harness.start()
    await eventually(lambda: "up" in published(listener), "the turn runs")
    await harness.stop(20)
    assert (await harness.ended()).error_type == "stopped"
    assert "stream_error" not in listener.types()
    assert worker.recorded == [("the end\n", "session-1")]


async def test_unresponsive_driver_is_killed(make: Make, listener: Any, eventually: Any) -> None:
    """A driver that ignores the stop is killed after the grace, with all its children."""
    before = descendants()
    harness = make("say up", "spawn trap '' TERM; sleep 600", "hang")
    await harness.start()
    await eventually(lambda: "up" in published(listener), "the turn runs")
    await harness.stop(0.2)
    assert (await harness.ended()).error_type == "stopped"
    assert not descendants() - before


async def test_missing_driver_is_a_start_error(make: Make) -> None:
    """The error has the reason as text."""
    harness = make("x", python="/nowhere/python")
    await harness.start()
    done = await harness.wait_done()
    assert (done.error_type, done.error) == ("start", "/nowhere/python: No such file or directory")
    assert not harness.follows_up
    with pytest.raises(MessageRefusedError, match="could not be started"):
        await harness.inject(message("x"))
