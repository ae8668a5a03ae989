"""The guardian: an agent that goes round in circles is told so. Deterministic; a nudge is all it can do so far."""

from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from monitor.rules import Limits
from monitor.state import Outcome, Steering, Streak, Watched
from sandherd.contracts.derived_ids import DerivedIds

LOOP: Final = "loop"
RESEND_AFTER: Final = 10.0
"""How long the message-relay has to take a nudge before it is sent again, in seconds."""


@dataclass(frozen=True, slots=True)
class Nudge:
    """A steering that is decided: what the agent is told, and the row of calls that it rests on."""

    steering: Steering
    streak: Streak


def looping(state: Watched, limits: Limits) -> Streak | None:
    """The row of equal calls, if it is long enough to be a loop."""
    streak = state.streak
    return streak if streak is not None and streak.count >= limits.loop_repeats else None


def steer(state: Watched, now: datetime, limits: Limits, ids: DerivedIds) -> Nudge | None:
    """A nudge, if the agent loops and may be spoken to.

    Not a finished agent, not one whose last nudge has not come to an end yet, and not within the cool-down. The
    same row of calls with the same number gives the same ids, so that a restart does not say it twice; `ids` has the
    monitors' key, so that no agent, which knows its calls, can send a message under that id before.
    """
    streak = looping(state, limits)
    if streak is None or not _may_be_spoken_to(state, now, limits):
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


def _may_be_spoken_to(state: Watched, now: datetime, limits: Limits) -> bool:
    if state.ended or state.stopping or state.paused or state.finished_at is not None:
        return False
    if state.steering is not None or state.found is not None:
        return False
    return state.steered_at is None or (now - state.steered_at).total_seconds() >= limits.steering_cooldown


def advice(streak: Streak) -> str:
    """What the agent is told: what repeats, and what to do instead."""
    return (
        f"You have called {streak.tool or 'the same tool'} {streak.count} times in a row with the same input, and the "
        "result was the same each time. Once more will not change it. Stop and read that result: say what it tells "
        "you, then do something else - another input, another tool, or a smaller step that shows why. If nothing "
        "else is left, end the task and say what stands in the way."
    )


def outcome(state: Watched, limits: Limits) -> Outcome | None:
    """What came of the steering that was last decided, once that is known."""
    steering = state.steering
    if steering is None:
        return None
    if steering.outcome is None and steering.repeats >= limits.loop_repeats:
        return "ignored"
    return steering.outcome


def to_send_again(state: Watched, now: datetime) -> Steering | None:
    """A steering that the message-relay has not taken in time: its command may have been lost with a monitor."""
    steering = state.steering
    if steering is None or steering.taken or steering.outcome is not None or state.ended:
        return None
    return steering if (now - steering.decided_at).total_seconds() >= RESEND_AFTER else None


def sent_again(state: Watched, now: datetime) -> Watched:
    """The state after that: the wait begins anew."""
    return state if state.steering is None else replace(state, steering=replace(state.steering, decided_at=now))
