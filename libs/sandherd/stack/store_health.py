"""Whether a nats-server that answers also stores, and when it is to be started again. Pure: `now` is given.

After a failed write nats-server marks the stream as failed and refuses to store until it is started again, also when
the resource is free again. While the resource is exhausted a restart would not help, and would make every client wait.
"""

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

WRITE_ERROR: Final = "write error"
"""In the health of a server: a stream of its was marked as failed, and only a restart ends that."""
NOT_STORING: Final = "jetstream not enabled"
UNACKNOWLEDGED_SECONDS: Final = 15.0
"""A write that is not acknowledged for so long, by a server that answers otherwise, counts as failed."""
FIRST_REST: Final = 5.0
LONGEST_REST: Final = 20.0
"""Between two restarts, doubled with each; a server that stores for the longest rest starts from the first again."""


class Action(StrEnum):
    """What is to be done about a server."""

    NOTHING = "nothing"
    WAIT = "wait"
    """It does not store, and a restart would not help yet."""
    RESTART = "restart"


@dataclass(frozen=True, kw_only=True)
class Look:
    """One look at a server. `health` is its own account, None if it did not answer; `short` is what it lacks now."""

    health: str | None
    stored: bool
    """Whether the probe's write was acknowledged."""
    short: bool
    alone: bool = True
    """Whether it is the only server: a write of several may wait for another of them."""
    silent: bool = False
    """Whether a new connection is opened and receives nothing: the server has no file descriptor for it, or hangs."""

    @property
    def failed(self) -> bool:
        """Whether the server itself says that it does not store."""
        return self.health is not None and any(words in self.health.lower() for words in (WRITE_ERROR, NOT_STORING))


@dataclass(frozen=True, kw_only=True)
class StoreState:
    """What is remembered of a server between two looks; times are of a monotonic clock, in seconds."""

    unstored_since: float | None = None
    was_short: bool = False
    """Whether it lacked something since it last stored."""
    restarts: int = 0
    restarted_at: float | None = None
    stored_at: float | None = None

    @property
    def rest(self) -> float:
        """How long to wait after the last restart before the next."""
        return float(min(LONGEST_REST, FIRST_REST * 2 ** max(0, self.restarts - 1)))


def next_state(state: StoreState, look: Look, now: float) -> tuple[StoreState, Action]:
    """What to remember after this look, and what to do."""
    if look.stored and not look.failed and not look.silent:
        settled = state.restarted_at is None or now - state.restarted_at > LONGEST_REST
        restarts = 0 if settled else state.restarts
        return StoreState(restarts=restarts, restarted_at=state.restarted_at, stored_at=now), Action.NOTHING
    since = now if state.unstored_since is None else state.unstored_since
    state = replace(state, unstored_since=since, was_short=state.was_short or look.short)
    if look.health is None and not look.silent:
        # It starts, has ended, or was stopped: a restart is the business of whoever holds its process.
        return state, Action.WAIT if look.short else Action.NOTHING
    if look.short or not _needs_restart(state, look, now) or _rests(state, now):
        return state, Action.WAIT
    return replace(state, restarts=state.restarts + 1, restarted_at=now, was_short=False), Action.RESTART


def _needs_restart(state: StoreState, look: Look, now: float) -> bool:
    if look.failed:
        return True
    unstored = now - (state.unstored_since if state.unstored_since is not None else now)
    unavailable = look.silent or (look.alone and not look.stored)
    return unavailable and (state.was_short or unstored >= UNACKNOWLEDGED_SECONDS)


def _rests(state: StoreState, now: float) -> bool:
    return state.restarted_at is not None and now - state.restarted_at < state.rest
