"""The guardian: nudges an agent that loops. Deterministic; nudging is its only action so far."""

from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from monitor.rules import Limits
from monitor.state import Outcome, SandboxActivity, Steering, Streak
from sandherd.contracts.names import DerivedIds

LOOP: Final = "loop"
RESEND_AFTER: Final = 10.0
"""How long the message-relay has to accept a nudge before it is sent again, in seconds."""


@dataclass(frozen=True, slots=True)
class Nudge:
    """A decided nudge: the message to the agent (`steering`), and the streak of calls that it is based on."""

    steering: Steering
    streak: Streak


def looping(state: SandboxActivity, limits: Limits) -> Streak | None:
    """The streak of equal calls, if it is long enough to be a loop."""
    streak = state.streak
    return streak if streak is not None and streak.count >= limits.loop_repeats else None


def steer(state: SandboxActivity, now: datetime, limits: Limits, ids: DerivedIds) -> Nudge | None:
    """A nudge, if the agent loops and may receive one.

    None for a finished agent, while the last nudge has no outcome yet, and within the cool-down. The same streak with
    the same number gives the same ids, so that a restart does not send it twice. `ids` has the monitors' key: an agent,
    which knows its calls, can't send a message under that id first.
    """
    streak = looping(state, limits)
    if streak is None or not _accepts_nudge(state, now, limits):
        return None
    number = state.steered + 1
    id = ids.derive(streak.began_at, LOOP, state.project, state.sandbox, streak.call, streak.began, number)
    steering = Steering(
        correlation=str(id),
        message=f"msg-{id.hex}",
        text=advice(streak),
        rule=LOOP,
        number=number,
        decided_at=now,
        call=streak.call,
        result=streak.result,
    )
    return Nudge(steering, streak)


def _accepts_nudge(state: SandboxActivity, now: datetime, limits: Limits) -> bool:
    if state.ended or state.stopping or state.paused or state.finished_at is not None:
        return False
    if state.steering is not None or state.found is not None:
        return False
    return state.steered_at is None or (now - state.steered_at).total_seconds() >= limits.steering_cooldown


def advice(streak: Streak) -> str:
    """The message to the agent: what repeats, and what to do instead."""
    return (
        f"You have called {streak.tool or 'the same tool'} {streak.count} times in a row with the same input, and the "
        "result was the same each time. Another identical call will not change it. Stop and read that result: say "
        "what it tells you, then do something else - another input, another tool, or a smaller step that shows why. "
        "If nothing else is left, end the task and say what stands in the way."
    )


def outcome(state: SandboxActivity, limits: Limits) -> Outcome | None:
    """The outcome of the last decided nudge, once it is known."""
    steering = state.steering
    if steering is None:
        return None
    if steering.outcome is None and steering.repeats >= limits.loop_repeats:
        return "ignored"
    return steering.outcome


def to_send_again(state: SandboxActivity, now: datetime) -> Steering | None:
    """A nudge that the message-relay did not accept in time: its command may have been lost with a monitor."""
    steering = state.steering
    if steering is None or steering.taken or steering.outcome is not None or state.ended:
        return None
    return steering if (now - steering.decided_at).total_seconds() >= RESEND_AFTER else None


def sent_again(state: SandboxActivity, now: datetime) -> SandboxActivity:
    """The state after it was sent again: `RESEND_AFTER` starts again."""
    return state if state.steering is None else replace(state, steering=replace(state.steering, decided_at=now))
