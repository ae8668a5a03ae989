"""The harness of drivers, with a real process behind it that follows a script (`echo_driver`)."""

import json
from typing import Any

import pytest

from sandherd.contracts.harnesses import Approvals
from sandherd_worker.harnesses.base import MessageRefusedError
from tests.unit.worker.echo_harness import Make, Worker, message, published


async def test_task_is_done_at_the_driver_result(make: Make, listener: Any, worker: Worker) -> None:
    """Events, output, transcript and result are published; the driver stays until it is stopped."""
    harness = make("say hello", "print shown")
    await harness.start()
    done = await harness.wait_done()
    assert (done.error_type, done.turns, done.final_output, done.session_id) == (None, 1, "done 1", "session-1")
    assert listener.types() == ["turn_started", "message", "turn_completed"]
    before = harness.follows_up
    await harness.stop(20)
    ended = await harness.ended()
    assert ended == done
    assert (before, harness.follows_up) == (True, False)
    assert listener.output == "shown\n"
    assert worker.recorded == [("turn 1\n", "session-1"), ("turn 1\nthe end\n", "session-1")]
    assert worker.turns == [(1, True), (1, False)]


async def test_usage_is_summed_into_the_result(make: Make) -> None:
    """Each event of usage has the difference to the last one, and the result has the sum."""
    harness = make("usage 10 5 300", "usage 1 2 30")
    await harness.start()
    used = (await harness.wait_done()).used
    assert (used["input_tokens"], used["output_tokens"], used["cost_micro_usd"]) == (11, 7, 330)


async def test_message_is_acknowledged_when_the_agent_has_it(make: Make, listener: Any, eventually: Any) -> None:
    """A message is acknowledged within a turn; one before the agent is ready waits, an unwanted one is refused."""
    harness = make("say up", "wait")
    await harness.start()
    await eventually(lambda: "up" in published(listener), "the turn runs")
    await harness.inject(message("psst"))
    assert published(listener) == ["up", "heard psst"]
    with pytest.raises(MessageRefusedError, match="it does not want to"):
        await harness.inject(message("no"))


async def test_interrupt_stops_the_turn_and_session_continues(
    make: Make, listener: Any, worker: Worker, eventually: Any
) -> None:
    """The interrupt's instruction is the next turn of the same agent, and the task is not done before it ends."""
    harness = make("say up", "wait")
    await harness.start()
    await eventually(lambda: "up" in published(listener), "the turn runs")
    await harness.inject(message("say instead", "interrupt"))
    await eventually(lambda: (2, False) in worker.turns, "the next turn is over")
    assert published(listener) == ["up", "instead"]
    assert harness.follows_up
    assert (await harness.wait_done()).turns == 2


async def test_message_after_the_end_is_another_turn(
    make: Make, listener: Any, worker: Worker, eventually: Any
) -> None:
    """A message after the end begins another turn; the task's outcome is unchanged."""
    harness = make("say one")
    await harness.start()
    done = await harness.wait_done()
    await harness.inject(message("say two"))
    await eventually(lambda: (2, False) in worker.turns, "the next turn is over")
    await harness.stop(20)
    assert await harness.ended() == done
    assert published(listener) == ["one", "two"]


async def test_approval_is_decided_by_policy_or_user(make: Make, listener: Any, eventually: Any) -> None:
    """A call is allowed, denied or requested; the decision is a message."""
    harness = make("use A", "use B", "use C", approvals=Approvals(tools={"B": "deny", "C": "ask"}))
    await harness.start()
    await eventually(lambda: "approval_requested" in listener.types(), "it is asked for")
    requested = next(event for event in listener.events if event.type == "agent.approval_requested")
    content = json.dumps({"approval_id": requested.approval_id, "granted": True, "reason": "ok"})
    await harness.inject(message(content, "approval"))
    await harness.wait_done()
    assert published(listener) == ["A granted None", "B denied the task does not allow this tool", "C granted ok"]


async def test_approval_is_withdrawn_by_interrupt_without_idle_turn(make: Make, listener: Any, eventually: Any) -> None:
    """Claude goes from the interrupted turn to the next one without being idle, and the approval is withdrawn."""
    next_turn = json.dumps({"type": "driver.turn", "data": {"turn": 2, "state": "running"}})
    harness = make("use Bash", f"raw {next_turn}", "say on", approvals=Approvals(otherwise="ask"))
    await harness.start()
    await eventually(lambda: "approval_requested" in listener.types(), "it is asked for")
    (requested,) = (event for event in listener.events if event.type == "agent.approval_requested")
    await harness.interrupt()
    await eventually(lambda: {"approval_withdrawn", "turn_completed"} <= set(listener.types()), "the turn is over")
    assert listener.types().index("approval_withdrawn") < listener.types().index("turn_completed")
    content = json.dumps({"approval_id": requested.approval_id, "granted": True, "reason": "ok"})
    with pytest.raises(MessageRefusedError, match="this approval is no longer pending"):
        await harness.inject(message(content, "approval"))


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ({"type": "driver.fly", "data": {}}, "driver.fly"),
        ({"type": "driver.turn", "data": {"turn": -1, "state": "idle"}}, "turn"),
        ({"type": "driver.ask", "data": {"tool": "x"}}, "approval_id"),
        ({"type": "driver.result", "data": {"error_type": "signal", "signal": 10**30}}, "signal"),
        ({"type": "agent.completed", "data": {}}, "agent.completed"),
        ({"type": "agent.transcript_saved", "data": {}}, "agent.transcript_saved"),
    ],
)
async def test_invalid_or_forbidden_driver_line_becomes_an_error(
    make: Make, listener: Any, line: Any, complaint: str
) -> None:
    """A line that is invalid or not a driver's becomes an error event, and the attempt continues."""
    harness = make(f"raw {json.dumps(line)}", "say on")
    await harness.start()
    assert (await harness.wait_done()).error_type is None
    assert published(listener) == ["on"]
    (error,) = [event for event in listener.events if event.type == "agent.error"]
    assert complaint in error.error


async def test_unknown_receipt_and_second_result_are_ignored(make: Make, listener: Any) -> None:
    """A receipt for an unknown message is ignored, and of two results, the first one counts."""
    taken = json.dumps({"type": "driver.taken", "data": {"message": "msg-9"}})
    harness = make(f"raw {taken}", "say on")
    await harness.start()
    done = await harness.wait_done()
    result = json.dumps({"type": "driver.result", "data": {"error_type": "internal", "error": "after all"}})
    await harness.inject(message(f"raw {result}"))
    await harness.stop(20)
    assert await harness.ended() == done


async def test_secret_in_the_output_is_redacted(make: Make, listener: Any) -> None:
    """Terminal output, and every other text of the harness, is redacted."""
    harness = make("print a hunter2-hunter2 b")
    await harness.start()
    await harness.wait_done()
    await harness.stop(20)
    assert listener.output == "a [redacted] b\n"
