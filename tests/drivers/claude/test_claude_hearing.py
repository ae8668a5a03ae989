"""Where the agent is in its turns, on objects that look like the SDK's: what a script can't bring about in time."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest

from message_relay.pumping import RECEIPT_WITHIN
from sandherd_drivers.claude.hearing import _SETTLING, Hearing
from sandherd_drivers.claude.spending import Spending
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
class Said:
    """Everything that was said, as words."""

    words: list[str] = field(default_factory=list)

    def event(self, type: str, /, **data: Any) -> None:
        if type != "agent.system_message":
            self.words.append(type)

    def turn(self, turn: int, state: str) -> None:
        self.words.append(f"{state} {turn}")

    def taken(self, message: str) -> None:
        self.words.append(f"taken {message}")

    def refused(self, message: str, reason: str) -> None:
        self.words.append(f"refused {message}")

    def result(self, **data: Any) -> None:
        self.words.append(f"result {data['error_type']} {data['stop_reason']}")


INIT = SystemMessage("init")
IDLE = SystemMessage("session_state_changed", {"state": "idle"})
RUNNING = SystemMessage("session_state_changed", {"state": "running"})
TURN = ["running 1", "agent.turn_started"]


@pytest.fixture
def said() -> Said:
    return Said()


@pytest.fixture
def hearing(said: Said, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hearing:
    monkeypatch.setattr("sandherd_drivers.claude.hearing._SETTLING", 0.01)
    return Hearing(cast("Wire", said), "s", tmp_path, Spending())


async def hear(hearing: Hearing, *messages: Any) -> None:
    for message in messages:
        await hearing.hear(message)


async def test_a_message_at_the_very_end_of_a_turn_puts_the_outcome_off(hearing: Hearing, said: Said) -> None:
    """It was handed over, and the program has not looked at it when it says that it has nothing to do."""
    hearing.expect("u1", None, "task")
    await hear(hearing, RUNNING, INIT, UserMessage("task", "u1"))
    hearing.expect("u2", "m", "more")
    await hear(hearing, ResultMessage(), IDLE)
    assert hearing.busy
    await hear(hearing, RUNNING, INIT, UserMessage("more", "u2"), ResultMessage(), IDLE)
    over = ["agent.turn_completed", "result None end_turn", "idle 2"]
    turns = [*TURN, "agent.user_message", "agent.turn_completed", "running 2", "agent.turn_started"]
    assert said.words == [*turns, "taken m", "agent.user_message", *over]
    assert not hearing.busy


async def test_a_message_that_is_passed_over_is_refused(hearing: Hearing, said: Said) -> None:
    """Once it is plain that no turn comes of it; that it is idle twice changes nothing."""
    hearing.expect("u1", None, "task")
    await hear(hearing, INIT, UserMessage("task", "u1"), ResultMessage())
    hearing.expect("u2", "m", "more")
    await hear(hearing, IDLE, IDLE)
    await hearing.idle.wait()
    assert said.words[-3:] == ["refused m", "result None end_turn", "idle 1"]


async def test_a_message_that_was_passed_over_is_given_again(hearing: Hearing, said: Said) -> None:
    """When it comes again: the agent has not had it, so it is not said to. One that waits or is taken is not."""
    hearing.expect("u1", "m", "more")
    wanted = [hearing.wants("m")]
    await hear(hearing, RUNNING, IDLE)
    await hearing.idle.wait()
    wanted.append(hearing.wants("m"))
    assert [word for word in said.words if word.endswith(" m")] == ["refused m"]
    hearing.expect("u2", "m", "more")
    await hear(hearing, INIT, UserMessage("more", "u2"))
    wanted.append(hearing.wants("m"))
    assert wanted == [False, True, False]
    assert [word for word in said.words if word.endswith(" m")] == ["refused m", "taken m", "taken m"]


async def test_a_message_that_is_taken_after_all_is_not_given_again(hearing: Hearing, said: Said) -> None:
    """The agent mentions it when it was refused already; it has it from then on."""
    hearing.expect("u1", "m", "more")
    await hear(hearing, RUNNING, IDLE)
    await hearing.idle.wait()
    await hear(hearing, INIT, UserMessage("more", "u1"))
    assert not hearing.wants("m")
    assert [word for word in said.words if word.endswith(" m")] == ["refused m", "taken m"]


def test_a_message_is_settled_while_the_relay_waits() -> None:
    """A receipt that comes after the relay has given up asking is as good as none."""
    assert _SETTLING * 2 <= RECEIPT_WITHIN


async def test_a_task_that_is_passed_over_is_a_failure(hearing: Hearing, said: Said) -> None:
    """A hook of the work tree may turn it away: that is no reason to wait for ever."""
    hearing.expect("u1", None, "task")
    await hear(hearing, RUNNING, IDLE)
    await hearing.idle.wait()
    assert said.words == ["result exit_status passed_over", "idle 0"]


async def test_a_message_that_ends_a_turn_is_taken_though_it_is_not_mentioned(hearing: Hearing, said: Said) -> None:
    """The result names what the turn took in."""
    hearing.expect("u1", None, "task")
    hearing.expect("u2", "m", "more")
    await hear(hearing, INIT, ResultMessage(user_message_uuids=["u1", "u2"]), IDLE)
    assert said.words == [*TURN, "taken m", "agent.turn_completed", "result None end_turn", "idle 1"]


@pytest.mark.parametrize("message", ["m", None])
async def test_what_a_hook_turns_away_is_not_taken(hearing: Hearing, said: Said, message: str | None) -> None:
    """Though the turn's result names it: a message is refused, and a task has failed; the next turn is like any."""
    away = SystemMessage("informational", {"prompt_submit_outcome": {"kind": "blocked_by_hook", "prompt_kept": False}})
    hearing.expect("u1", message, "text")
    await hear(hearing, RUNNING, INIT, away, ResultMessage(user_message_uuids=["u1"]), IDLE)
    outcome = ["result exit_status passed_over"] if message is None else []
    assert said.words[2:4] == [*(outcome or ["refused m"]), "agent.turn_completed"]
    hearing.expect("u2", "n", "text")
    await hear(hearing, RUNNING, INIT, ResultMessage(user_message_uuids=["u2"]), IDLE)
    assert [word for word in said.words if word.startswith("taken")] == ["taken n"]
    assert len([word for word in said.words if word.startswith("result")]) == 1


async def test_turns_are_stopped_until_all_that_was_given_is(hearing: Hearing, said: Said) -> None:
    """Also the turn of a message that waited; then what is given goes on."""
    stopped: list[int] = []

    async def stop() -> None:
        stopped.append(hearing.turn)
        hearing.idle.set()

    hearing.expect("u1", None, "task")
    await hear(hearing, INIT, UserMessage("task", "u1"))
    hearing.expect("u2", "m", "more")
    hearing.stop(stop)
    await hear(hearing, ResultMessage("aborted_tools", is_error=True), RUNNING, INIT)
    assert not hearing.goes_on.is_set()
    await hearing.idle.wait()
    assert stopped == [2]
    await hear(hearing, UserMessage("more", "u2"), ResultMessage("aborted_streaming", is_error=True), IDLE)
    assert hearing.goes_on.is_set()
    assert not [word for word in said.words if word.startswith("result")]
