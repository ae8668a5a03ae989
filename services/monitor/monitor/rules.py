"""When a sandbox is declared dead, too old, finished, stuck, idle or flooding, and so is to be ended.

Pure functions of its state, the time and the limits; the first rule of `RULES` that holds is acted upon.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from monitor.state import FLOOD_WINDOW_SECONDS, SandboxActivity
from sandherd.contracts.records import SharedSandboxRecord
from sandherd.contracts.states import SANDBOX_ENDING, SandboxState


class Rule(StrEnum):
    """What the watch finds. The value is also the reason in the command to the spawner."""

    DEAD = "dead"
    TOO_OLD = "too_old"
    FINISHED = "finished"
    STUCK = "stuck"
    IDLE = "idle"
    FLOODING = "flooding"


@dataclass(frozen=True, slots=True)
class Limits:
    """How long each condition may hold, in seconds; how much may be published; how often a call may repeat."""

    dead_after: float
    idle_after: float
    stuck_after: float
    finished_after: float
    max_age: float
    flood_bytes: int
    """Maximum bytes that a sandbox may publish in `FLOOD_WINDOW_SECONDS`."""
    loop_repeats: int
    steering_cooldown: float
    flood_messages: int = 60_000
    """Maximum messages that a sandbox may publish in `FLOOD_WINDOW_SECONDS`."""
    flood_junk: int = 300
    """Maximum of those messages that may be junk (no events)."""
    repeat_after: float = 60.0
    """How long the spawner has to end a sandbox before the finding is reported to it again, in seconds."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A rule whose condition holds: since when, and its limit in seconds."""

    rule: Rule
    since: datetime
    limit: float

    def age(self, now: datetime) -> float:
        """How long the condition has held, in seconds."""
        return max(0.0, (now - self.since).total_seconds())


def _since(state: SandboxActivity, *moments: datetime | None) -> datetime:
    """The latest of these moments, or of its last resume: while paused it could do nothing."""
    known = (at for at in (state.resumed_at, *moments) if at is not None)
    return max(known, default=state.started_at)


def _exceeded(rule: Rule, since: datetime, now: datetime, limit: float) -> Finding | None:
    return Finding(rule, since, limit) if (now - since).total_seconds() >= limit else None


def dead_finding(state: SandboxActivity, now: datetime, limits: Limits) -> Finding | None:
    """No event or heartbeat for `dead_after`. If it never published, time counts from its creation request."""
    return None if state.paused else _exceeded(Rule.DEAD, state.last_sign_at, now, limits.dead_after)


def too_old_finding(state: SandboxActivity, now: datetime, limits: Limits) -> Finding | None:
    """Older than it may get.

    The spawner ends a sandbox with an `expires_at`. It is found here only if it still lives `repeat_after` later: two
    services that end one sandbox would publish two different reasons.
    """
    if state.expires_at is None:
        return _exceeded(Rule.TOO_OLD, state.started_at, now, limits.max_age)
    if (now - state.expires_at).total_seconds() < limits.repeat_after:
        return None
    return Finding(Rule.TOO_OLD, state.started_at, max(0.0, (state.expires_at - state.started_at).total_seconds()))


def finished_finding(state: SandboxActivity, now: datetime, limits: Limits) -> Finding | None:
    """Its agent has ended, and it had neither a message nor work for `finished_after` or its `linger`, if longer.

    A command that a user runs in it counts as work, even if it prints nothing.
    """
    user_command_runs = any(call.asked for call in state.in_flight.values())
    if state.paused or state.alone or state.finished_at is None or user_command_runs:
        return None
    since = _since(state, state.finished_at, state.last_message_at, state.last_work_at)
    return _exceeded(Rule.FINISHED, since, now, max(limits.finished_after, state.linger))


def stuck_finding(state: SandboxActivity, now: datetime, limits: Limits) -> Finding | None:
    """A call has been in flight for too long.

    An agent's whole program may take as long as its sandbox may live. A command that a user runs has its own limit; so
    has an approval, and while one is open, all other calls wait.
    """
    calls = [call.begun_at for call in state.in_flight.values() if not call.whole and not call.asked]
    waits = any(call.waits for call in state.in_flight.values())
    if state.paused or state.finished_at is not None or not calls or waits:
        return None
    return _exceeded(Rule.STUCK, _since(state, min(calls), state.answered_at), now, limits.stuck_after)


def idle_finding(state: SandboxActivity, now: datetime, limits: Limits) -> Finding | None:
    """No work for too long, and nothing in flight: a running call is activity."""
    if state.paused or state.alone or state.finished_at is not None or state.in_flight:
        return None
    return _exceeded(Rule.IDLE, _since(state, state.last_work_at), now, limits.idle_after)


def flooding_finding(state: SandboxActivity, now: datetime, limits: Limits) -> Finding | None:
    """It exceeds a flood limit, and uses capacity of the stream that all share. A flood that has passed is ignored."""
    if state.said_since is None or not _too_much(state, limits):
        return None
    over = (now - state.said_since).total_seconds() > 2 * FLOOD_WINDOW_SECONDS
    return None if over else Finding(Rule.FLOODING, state.said_since, FLOOD_WINDOW_SECONDS)


def _too_much(state: SandboxActivity, limits: Limits) -> bool:
    """Whether the bytes, messages or junk of the last flood window exceed their limit."""
    return (
        state.said_bytes > limits.flood_bytes
        or state.said_messages > limits.flood_messages
        or state.said_junk > limits.flood_junk
    )


RuleFunction = Callable[[SandboxActivity, datetime, Limits], Finding | None]
RULES: Final[tuple[RuleFunction, ...]] = (
    flooding_finding,
    dead_finding,
    too_old_finding,
    finished_finding,
    stuck_finding,
    idle_finding,
)
"""In the order of evaluation; the first that holds is acted upon."""


def find(state: SandboxActivity, now: datetime, limits: Limits, watching_since: datetime) -> Finding | None:
    """The finding to act upon now, if any.

    After a start or a broker outage, silence proves nothing: every rule but age and flood waits for `dead_after`, in
    which a live worker must have published. A finding is repeated only after `repeat_after`. A sandbox that is stopping
    is left to the spawner.
    """
    if state.ended or state.stopping or _found_lately(state, now, limits):
        return None
    just_started = now - watching_since < timedelta(seconds=limits.dead_after)
    rules = (flooding_finding, too_old_finding) if just_started else RULES
    return next((finding for rule in rules if (finding := rule(state, now, limits))), None)


def still_holds(finding: Finding, recorded: SharedSandboxRecord, now: datetime) -> bool:
    """Whether a finding still holds by the spawner's record, which shows a pause or an extension before its event.

    A sandbox that is ending is left to the spawner.
    """
    if recorded.state in SANDBOX_ENDING:
        return False
    if finding.rule is Rule.TOO_OLD:
        return recorded.expires_at is None or now >= recorded.expires_at
    if finding.rule in {Rule.DEAD, Rule.FLOODING}:
        return recorded.state is not SandboxState.PAUSED
    return recorded.state is not SandboxState.PAUSED and recorded.task is not None


def _found_lately(state: SandboxActivity, now: datetime, limits: Limits) -> bool:
    return state.found is not None and (now - state.found.at).total_seconds() < limits.repeat_after
