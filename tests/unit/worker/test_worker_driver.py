"""The harness of drivers, with a real process behind it that does what it is told (`echo_driver`)."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from sandherd.contracts.delivery import InboxMessage
from sandherd.contracts.harnesses import Approvals
from sandherd_worker.harnesses.base import CannotTakeError
from sandherd_worker.harnesses.driver import DriverHarness
from sandherd_worker.harnesses.driver_task import Around, Task
from sandherd_worker.harnesses.program import Program
from sandherd_worker.processes import Reaper, descendants, end
from sandherd_worker.redaction import Redactor

ROOT = Path(__file__).parents[3]
PACKAGES = (ROOT / "services" / "worker", ROOT / "tests" / "drivers" / "scripted")

Make = Callable[..., DriverHarness]


class Worker:
    """What a driver's harness asks of its worker."""

    def __init__(self) -> None:
        self.kept: list[tuple[str, str]] = []
        self.turns: list[tuple[int, bool]] = []

    async def keep(self, path: Path, session: str) -> None:
        if (what := (path.read_text(), session)) not in self.kept[-1:]:
            self.kept.append(what)

    async def turned(self, turn: int, working: bool) -> None:
        self.turns.append((turn, working))


@pytest.fixture
async def reaper() -> AsyncIterator[Reaper]:
    reaper = Reaper()
    reaper.start()
    before = descendants()
    yield reaper
    await end(lambda: descendants() - before, 0)
    reaper.stop()


@pytest.fixture
def worker() -> Worker:
    return Worker()


@pytest.fixture
async def make(tmp_path: Path, listener: Any, reaper: Reaper, worker: Worker) -> AsyncIterator[Make]:
    made: list[DriverHarness] = []

    def make(
        *task: str,
        approvals: Approvals | None = None,
        kills: Callable[[], int | None] = lambda: 0,
        python: str = "",
        arguments: Sequence[str] = ("-P", "-m", "echo_driver"),
    ) -> DriverHarness:
        (state := tmp_path / "driver").mkdir(exist_ok=True)
        environment = {"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(map(str, PACKAGES))}
        argv = [python or sys.executable, *arguments]
        around = Around(
            voice=listener,
            redactor=Redactor(["hunter2-hunter2"]),
            reaper=reaper,
            memory_kills=kills,
            keep=worker.keep,
            turned=worker.turned,
        )
        wanted = Task(
            text="\n".join(task),
            work_dir=tmp_path,
            state_dir=state,
            harness={"kind": "echo"},
            approvals=approvals or Approvals(),
        )
        harness = DriverHarness(Program(argv=argv, environment=environment, work_dir=tmp_path), wanted, around)
        made.append(harness)
        return harness

    yield make
    for harness in made:
        await harness.stop(0)


def message(content: str, kind: Any = "user_message", name: str = "msg-1") -> InboxMessage:
    now = datetime.now(UTC)
    return InboxMessage(
        message=name,
        project="p1",
        sandbox="sbx-1",
        content=content,
        message_type=kind,
        sent_at=now,
        expires_at=now + timedelta(hours=1),
    )


def said(listener: Any) -> list[str]:
    return [event.content for event in listener.events if event.type == "agent.message"]


async def test_a_task_is_done_when_the_driver_says_so(make: Make, listener: Any, worker: Worker) -> None:
    """Events, output, transcript and result come through; the driver stays, and ends in order when it is told to."""
    harness = make("say hello", "print shown")
    await harness.start()
    done = await harness.done()
    assert (done.error_type, done.turns, done.final_output, done.session_id) == (None, 1, "done 1", "session-1")
    assert listener.types() == ["turn_started", "message", "turn_completed"]
    before = harness.follows_up
    await harness.stop(20)
    ended = await harness.ended()
    assert ended == done
    assert (before, harness.follows_up) == (True, False)
    assert listener.output == "shown\n"
    assert worker.kept == [("turn 1\n", "session-1"), ("turn 1\nthe end\n", "session-1")]
    assert worker.turns == [(1, True), (1, False)]


async def test_usage_is_summed_into_what_came_of_it(make: Make) -> None:
    """Each event says a difference; the end says all of them together."""
    harness = make("usage 10 5 300", "usage 1 2 30")
    await harness.start()
    used = (await harness.done()).used
    assert (used["input_tokens"], used["output_tokens"], used["cost_micro_usd"]) == (11, 7, 330)


async def test_a_message_is_taken_when_the_agent_has_it(make: Make, listener: Any, eventually: Any) -> None:
    """In the middle of a turn; one that comes before the agent is ready waits, one that it doesn't want is refused."""
    harness = make("say up", "wait")
    await harness.start()
    await eventually(lambda: "up" in said(listener), "the turn runs")
    await harness.inject(message("psst"))
    assert said(listener) == ["up", "heard psst"]
    with pytest.raises(CannotTakeError, match="it does not want to"):
        await harness.inject(message("no"))


async def test_an_interrupt_stops_the_turn_and_the_session_goes_on(
    make: Make, listener: Any, worker: Worker, eventually: Any
) -> None:
    """The instruction that comes with it is the next turn; the agent is the same, and its task is not done before."""
    harness = make("say up", "wait")
    await harness.start()
    await eventually(lambda: "up" in said(listener), "the turn runs")
    await harness.inject(message("say instead", "interrupt"))
    await eventually(lambda: (2, False) in worker.turns, "the next turn is over")
    assert said(listener) == ["up", "instead"]
    assert harness.follows_up
    assert (await harness.done()).turns == 2


async def test_a_message_after_the_end_is_another_turn(
    make: Make, listener: Any, worker: Worker, eventually: Any
) -> None:
    """What came of the task stays what it was."""
    harness = make("say one")
    await harness.start()
    done = await harness.done()
    await harness.inject(message("say two"))
    await eventually(lambda: (2, False) in worker.turns, "the next turn is over")
    await harness.stop(20)
    assert await harness.ended() == done
    assert said(listener) == ["one", "two"]


async def test_leave_is_decided_by_the_policy_or_a_person(make: Make, listener: Any, eventually: Any) -> None:
    """Allowed, denied and asked for; the answer comes as a message."""
    harness = make("use A", "use B", "use C", approvals=Approvals(tools={"B": "deny", "C": "ask"}))
    await harness.start()
    await eventually(lambda: "approval_requested" in listener.types(), "it is asked for")
    asked = next(event for event in listener.events if event.type == "agent.approval_requested")
    content = json.dumps({"approval_id": asked.approval_id, "granted": True, "reason": "ok"})
    await harness.inject(message(content, "approval"))
    await harness.done()
    assert said(listener) == ["A granted None", "B denied the task does not allow this tool", "C granted ok"]


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


@pytest.mark.parametrize(("counts", "error_type", "number"), [((4, 5), "out_of_memory", 9), ((4, 4), "signal", None)])
async def test_a_kill_of_the_agent_below_its_driver_is_judged_too(
    make: Make, counts: tuple[int, int], error_type: str, number: int | None
) -> None:
    """The kernel kills the largest process, and that is the agent; its driver lives to say that it was a signal."""
    seen = iter(counts)
    result = {"type": "driver.result", "data": {"error_type": "signal", "error": "the agent was killed by SIGKILL"}}
    harness = make(f"raw {json.dumps(result)}", kills=lambda: next(seen, counts[1]))
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


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ({"type": "driver.fly", "data": {}}, "driver.fly"),
        ({"type": "driver.turn", "data": {"turn": -1, "state": "idle"}}, "turn"),
        ({"type": "driver.ask", "data": {"tool": "x"}}, "approval_id"),
        ({"type": "agent.completed", "data": {}}, "agent.completed"),
        ({"type": "agent.transcript_saved", "data": {}}, "agent.transcript_saved"),
    ],
)
async def test_nothing_harmful_may_be_said(make: Make, listener: Any, line: Any, complaint: str) -> None:
    """A line that is wrong or not a driver's to say becomes an error that names it, and the attempt goes on."""
    harness = make(f"raw {json.dumps(line)}", "say on")
    await harness.start()
    assert (await harness.done()).error_type is None
    assert said(listener) == ["on"]
    (error,) = [event for event in listener.events if event.type == "agent.error"]
    assert complaint in error.error


async def test_a_receipt_for_nothing_and_a_second_result_are_no_harm(make: Make, listener: Any) -> None:
    """The first word counts."""
    taken = json.dumps({"type": "driver.taken", "data": {"message": "msg-9"}})
    harness = make(f"raw {taken}", "say on")
    await harness.start()
    done = await harness.done()
    result = json.dumps({"type": "driver.result", "data": {"error_type": "internal", "error": "after all"}})
    await harness.inject(message(f"raw {result}"))
    await harness.stop(20)
    assert await harness.ended() == done


async def test_a_secret_in_the_output_is_not_shown(make: Make, listener: Any) -> None:
    """Neither as terminal output, nor anywhere else that the harness itself puts it."""
    harness = make("print a hunter2-hunter2 b")
    await harness.start()
    await harness.done()
    await harness.stop(20)
    assert listener.output == "a [redacted] b\n"
