"""The turn tracker, with objects like the SDK's: cases that a script can't cause in time."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest

from message_relay.inbox_delivery import RECEIPT_WITHIN
from sandherd_drivers.claude.turn_tracker import _UNTAKEN_SECONDS, TurnTracker
from sandherd_drivers.claude.usage import SessionUsage
from sandherd_drivers.wire import Wire


@dataclass
class SystemMessage:
    subtype: str
    data: dict[str, Any] = field(default_factory=dict)


@dataclass
class UserMessage:
    content: str
    uuid: str
    tool_use_result: Any = None
    parent_tool_use_id: str | None = None
    origin: Any = None


@dataclass
class ResultMessage:
    terminal_reason: str = "completed"
    is_error: bool = False
    subtype: str = "success"
    result: str = "done"
    session_id: str = "s"
    stop_reason: str = "end_turn"
    total_cost_usd: float = 0.0
    duration_ms: int = 1
    errors: Any = None
    api_error_status: Any = None
    user_message_uuids: Any = None
    model_usage: Any = None


@dataclass
class RecordingWire:
    """All published texts."""

    words: list[str] = field(default_factory=list)

    def publish_event(self, type: str, /, **data: Any) -> None:
        if type != "agent.system_message":
            self.words.append(type)

    def report_turn(self, turn: int, state: str) -> None:
        self.words.append(f"{state} {turn}")

    def report_taken(self, message: str) -> None:
        self.words.append(f"taken {message}")

    def report_refused(self, message: str, reason: str) -> None:
        self.words.append(f"refused {message}")

    def report_result(self, **data: Any) -> None:
        self.words.append(f"result {data['error_type']} {data['stop_reason']}")


INIT = SystemMessage("init")
IDLE = SystemMessage("session_state_changed", {"state": "idle"})
RUNNING = SystemMessage("session_state_changed", {"state": "running"})
TURN = ["running 1", "agent.turn_started"]


@pytest.fixture
def recording_wire() -> RecordingWire:
    return RecordingWire()


@pytest.fixture
def tracker(recording_wire: RecordingWire, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TurnTracker:
    monkeypatch.setattr("sandherd_drivers.claude.turn_tracker._UNTAKEN_SECONDS", 0.01)
    return TurnTracker(cast("Wire", recording_wire), "s", tmp_path, SessionUsage())


async def receive(tracker: TurnTracker, *messages: Any) -> None:
    for message in messages:
        await tracker.handle(message)


async def test_message_at_the_end_of_a_turn_delays_the_outcome(
    tracker: TurnTracker, recording_wire: RecordingWire
) -> None:
    """The message was delivered, but the program has not read it when it reports idle."""
    tracker.register("u1", None, "task")
    await receive(tracker, RUNNING, INIT, UserMessage("task", "u1"))
    tracker.register("u2", "m", "more")
    await receive(tracker, ResultMessage(), IDLE)
    assert tracker.is_busy
    await receive(tracker, RUNNING, INIT, UserMessage("more", "u2"), ResultMessage(), IDLE)
    over = ["agent.turn_completed", "result None end_turn", "idle 2"]
    turns = [*TURN, "agent.user_message", "agent.turn_completed", "running 2", "agent.turn_started"]
    assert recording_wire.words == [*turns, "taken m", "agent.user_message", *over]
    assert not tracker.is_busy


async def test_skipped_message_is_refused(tracker: TurnTracker, recording_wire: RecordingWire) -> None:
    """A message is refused once no turn can include it; a repeated idle state changes nothing."""
    tracker.register("u1", None, "task")
    await receive(tracker, INIT, UserMessage("task", "u1"), ResultMessage())
    tracker.register("u2", "m", "more")
    await receive(tracker, IDLE, IDLE)
    await tracker.idle.wait()
    assert recording_wire.words[-3:] == ["refused m", "result None end_turn", "idle 1"]


async def test_skipped_message_may_be_delivered_again(tracker: TurnTracker, recording_wire: RecordingWire) -> None:
    """A refused message has not reached the agent; one that waits or was accepted is not delivered again."""
    tracker.register("u1", "m", "more")
    wanted = [tracker.should_deliver("m")]
    await receive(tracker, RUNNING, IDLE)
    await tracker.idle.wait()
    wanted.append(tracker.should_deliver("m"))
    assert [word for word in recording_wire.words if word.endswith(" m")] == ["refused m"]
    tracker.register("u2", "m", "more")
    await receive(tracker, INIT, UserMessage("more", "u2"))
    wanted.append(tracker.should_deliver("m"))
    assert wanted == [False, True, False]
    assert [word for word in recording_wire.words if word.endswith(" m")] == ["refused m", "taken m", "taken m"]


async def test_late_acceptance_prevents_a_second_delivery(tracker: TurnTracker, recording_wire: RecordingWire) -> None:
    """A message that the agent mentions after its refusal counts as accepted from then on."""
    tracker.register("u1", "m", "more")
    await receive(tracker, RUNNING, IDLE)
    await tracker.idle.wait()
    await receive(tracker, INIT, UserMessage("more", "u1"))
    assert not tracker.should_deliver("m")
    assert [word for word in recording_wire.words if word.endswith(" m")] == ["refused m", "taken m"]


def test_message_is_settled_within_the_receipt_time() -> None:
    """A receipt that comes after the relay's time-out is useless."""
    assert _UNTAKEN_SECONDS * 2 <= RECEIPT_WITHIN


async def test_skipped_task_is_a_failure(tracker: TurnTracker, recording_wire: RecordingWire) -> None:
    """A hook of the work tree may block the task: the driver does not wait forever."""
    tracker.register("u1", None, "task")
    await receive(tracker, RUNNING, IDLE)
    await tracker.idle.wait()
    assert recording_wire.words == ["result exit_status passed_over", "idle 0"]


async def test_message_in_the_result_is_accepted(tracker: TurnTracker, recording_wire: RecordingWire) -> None:
    """The turn's result names the messages that it has included."""
    tracker.register("u1", None, "task")
    tracker.register("u2", "m", "more")
    await receive(tracker, INIT, ResultMessage(user_message_uuids=["u1", "u2"]), IDLE)
    assert recording_wire.words == [*TURN, "taken m", "agent.turn_completed", "result None end_turn", "idle 1"]


@pytest.mark.parametrize("message", ["m", None])
async def test_message_blocked_by_hook_is_refused(
    tracker: TurnTracker, recording_wire: RecordingWire, message: str | None
) -> None:
    """A message that a hook blocks is refused though the turn's result names it; a blocked task fails."""
    blocked = SystemMessage(
        "informational", {"prompt_submit_outcome": {"kind": "blocked_by_hook", "prompt_kept": False}}
    )
    tracker.register("u1", message, "text")
    await receive(tracker, RUNNING, INIT, blocked, ResultMessage(user_message_uuids=["u1"]), IDLE)
    outcome = ["result exit_status passed_over"] if message is None else []
    assert recording_wire.words[2:4] == [*(outcome or ["refused m"]), "agent.turn_completed"]
    tracker.register("u2", "n", "text")
    await receive(tracker, RUNNING, INIT, ResultMessage(user_message_uuids=["u2"]), IDLE)
    assert [word for word in recording_wire.words if word.startswith("taken")] == ["taken n"]
    assert len([word for word in recording_wire.words if word.startswith("result")]) == 1


async def test_turns_are_stopped_until_all_earlier_messages_are(
    tracker: TurnTracker, recording_wire: RecordingWire
) -> None:
    """The turn of a waiting message is stopped too; then later messages continue."""
    stopped: list[int] = []

    async def stop() -> None:
        stopped.append(tracker.turn)
        tracker.idle.set()

    tracker.register("u1", None, "task")
    await receive(tracker, INIT, UserMessage("task", "u1"))
    tracker.register("u2", "m", "more")
    tracker.stop_turns(stop)
    await receive(tracker, ResultMessage("aborted_tools", is_error=True), RUNNING, INIT)
    assert not tracker.can_start_turn.is_set()
    await tracker.idle.wait()
    assert stopped == [2]
    await receive(tracker, UserMessage("more", "u2"), ResultMessage("aborted_streaming", is_error=True), IDLE)
    assert tracker.can_start_turn.is_set()
    assert not [word for word in recording_wire.words if word.startswith("result")]
