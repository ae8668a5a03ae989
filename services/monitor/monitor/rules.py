"""When a sandbox is to be ended: pure functions of its state, the time and the limits. Source: design §9."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from monitor.recorded import Recorded
from monitor.state import SPELL, Watched
from sandherd.contracts.states import SANDBOX_ENDING, SandboxState


class Rule(StrEnum):
    """What the idle watch finds. The value is also the reason that the spawner is given."""

    DEAD = "dead"
    TOO_OLD = "too_old"
    FINISHED = "finished"
    STUCK = "stuck"
    IDLE = "idle"
    FLOODING = "flooding"


@dataclass(frozen=True, slots=True)
class Limits:
    """How long each condition may hold, in seconds; how much may be said; and how often a call may repeat."""

    dead_after: float
    idle_after: float
    stuck_after: float
    finished_after: float
    max_age: float
    flood_bytes: int
    """How much a sandbox may say in a spell."""
    loop_repeats: int
    steering_cooldown: float
    flood_messages: int = 60_000
    """The messages that a sandbox may publish in a spell."""
    flood_junk: int = 300
    """How many of them may be no events."""
    repeat_after: float = 60.0
    """How long the spawner has before a sandbox that still lives is reported to it once more."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A rule that holds: since when, and its limit in seconds."""

    rule: Rule
    since: datetime
    limit: float

    def age(self, now: datetime) -> float:
        """How long the condition has held, in seconds."""
        return max(0.0, (now - self.since).total_seconds())


def _since(state: Watched, *moments: datetime | None) -> datetime:
    """The latest of these, or when it went on after a pause: while it was frozen it could do nothing."""
    known = (at for at in (state.resumed_at, *moments) if at is not None)
    return max(known, default=state.started_at)


def _held(rule: Rule, since: datetime, now: datetime, limit: float) -> Finding | None:
    return Finding(rule, since, limit) if (now - since).total_seconds() >= limit else None


def dead(state: Watched, now: datetime, limits: Limits) -> Finding | None:
    """Neither an event nor a heartbeat. One that never spoke counts from when it was wanted, so none is overlooked."""
    return None if state.paused else _held(Rule.DEAD, state.last_sign_at, now, limits.dead_after)


def too_old(state: Watched, now: datetime, limits: Limits) -> Finding | None:
    """Older than it may get.

    One whose time the spawner has named is ended by the spawner, and is found here only if it lives on long after:
    two that end one thing would tell two stories of its end.
    """
    if state.expires_at is None:
        return _held(Rule.TOO_OLD, state.started_at, now, limits.max_age)
    if (now - state.expires_at).total_seconds() < limits.repeat_after:
        return None
    return Finding(Rule.TOO_OLD, state.started_at, max(0.0, (state.expires_at - state.started_at).total_seconds()))


def finished(state: Watched, now: datetime, limits: Limits) -> Finding | None:
    """Its agent has ended, and neither a message nor work has come since, for as long as it was to stay.

    A command that somebody runs in it is work, however quiet it is.
    """
    asked = any(call.asked for call in state.in_flight.values())
    if state.paused or state.alone or state.finished_at is None or asked:
        return None
    since = _since(state, state.finished_at, state.last_message_at, state.last_work_at)
    return _held(Rule.FINISHED, since, now, max(limits.finished_after, state.linger))


def stuck(state: Watched, now: datetime, limits: Limits) -> Finding | None:
    """A call has been in flight for too long.

    An agent's whole program may take as long as its sandbox may live; a command that somebody runs has its own limit,
    and so has a question to a person, behind which all else waits.
    """
    calls = [call.begun_at for call in state.in_flight.values() if not call.whole and not call.asked]
    waits = any(call.waits for call in state.in_flight.values())
    if state.paused or state.finished_at is not None or not calls or waits:
        return None
    return _held(Rule.STUCK, _since(state, min(calls), state.answered_at), now, limits.stuck_after)


def idle(state: Watched, now: datetime, limits: Limits) -> Finding | None:
    """No work for too long, and nothing in flight: a call that runs is activity."""
    if state.paused or state.alone or state.finished_at is not None or state.in_flight:
        return None
    return _held(Rule.IDLE, _since(state, state.last_work_at), now, limits.idle_after)


def flooding(state: Watched, now: datetime, limits: Limits) -> Finding | None:
    """It says more than any has to say: all share one stream, and it takes their room. What is over is let be."""
    if state.said_since is None or not _too_much(state, limits):
        return None
    over = (now - state.said_since).total_seconds() > 2 * SPELL
    return None if over else Finding(Rule.FLOODING, state.said_since, SPELL)


def _too_much(state: Watched, limits: Limits) -> bool:
    """Whether bytes, messages or junk of the last spell exceed their limit."""
    return (
        state.said_bytes > limits.flood_bytes
        or state.said_messages > limits.flood_messages
        or state.said_junk > limits.flood_junk
    )


Judge = Callable[[Watched, datetime, Limits], Finding | None]
RULES: Final[tuple[Judge, ...]] = (flooding, dead, too_old, finished, stuck, idle)
"""In the order in which they are asked; the first that holds is acted upon."""


def judge(state: Watched, now: datetime, limits: Limits, watching_since: datetime) -> Finding | None:
    """What is to be done about a sandbox now, if anything.

    Silence proves nothing while nobody could be heard: after a start, or after the broker was away, every rule but
    the age and the flood waits until a living worker must have spoken (`dead_after`). What was found already is found
    again only after `repeat_after`; what is stopping is the spawner's.
    """
    if state.ended or state.stopping or _found_lately(state, now, limits):
        return None
    deaf = now - watching_since < timedelta(seconds=limits.dead_after)
    rules = (flooding, too_old) if deaf else RULES
    return next((finding for rule in rules if (finding := rule(state, now, limits))), None)


def stands(finding: Finding, recorded: Recorded, now: datetime) -> bool:
    """Whether a finding still holds by the spawner's record, which knows of a pause or of more time before any event.

    What is ending is the spawner's already.
    """
    if recorded.state in SANDBOX_ENDING:
        return False
    if finding.rule is Rule.TOO_OLD:
        return recorded.expires_at is None or now >= recorded.expires_at
    if finding.rule in {Rule.DEAD, Rule.FLOODING}:
        return recorded.state is not SandboxState.PAUSED
    return recorded.state is not SandboxState.PAUSED and not recorded.alone


def _found_lately(state: Watched, now: datetime, limits: Limits) -> bool:
    return state.found is not None and (now - state.found.at).total_seconds() < limits.repeat_after
