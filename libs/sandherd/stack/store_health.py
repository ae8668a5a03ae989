"""Decides when a nats-server that responds but does not store messages is restarted. Pure.

After a failed write nats-server marks the stream as failed and stores nothing in it until it is restarted, even if the
exhausted resource is available again. As long as the resource is exhausted, a restart would not help, and every client
would have to wait.
"""

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from sandherd.backoff import Backoff

WRITE_ERROR: Final = "write error"
"""A text in the health of a server with a failed stream. Only a restart fixes that."""
NOT_STORING: Final = "jetstream not enabled"
"""A text in the health of a server whose JetStream is disabled, so that it stores nothing."""
UNACKNOWLEDGED_SECONDS: Final = 15.0
"""If a server that responds has not acknowledged a write for this time, it counts as not storing."""
RESTART_BACKOFF: Final = Backoff(base=5.0, cap=20.0, jitter=0)
"""The backoff between two restarts. It is reset when a server stores a message more than `cap` seconds after a
restart."""


class StoreAction(StrEnum):
    """What to do about a server."""

    NOTHING = "nothing"
    WAIT = "wait"
    """The server does not store, and a restart would not help yet."""
    RESTART = "restart"


@dataclass(frozen=True, kw_only=True)
class StoreCheck:
    """The result of checking a server. `health` is its own report, or None without a reply.

    `short` is whether it lacks a resource.
    """

    health: str | None
    stored: bool
    """Whether the probe's write was acknowledged."""
    short: bool
    alone: bool = True
    """Whether it is the herd's only server. With several, another server may be the reason why a write fails."""
    silent: bool = False
    """Whether a new connection receives nothing: the server has no file descriptor for it, or hangs."""

    @property
    def failed(self) -> bool:
        """Whether the server itself reports that it does not store."""
        return self.health is not None and any(text in self.health.lower() for text in (WRITE_ERROR, NOT_STORING))


@dataclass(frozen=True, kw_only=True)
class StoreState:
    """The state of a server between two checks. Times are in seconds of a monotonic clock."""

    unstored_since: float | None = None
    was_short: bool = False
    """Whether it has lacked a resource since it last stored a message."""
    restarts: int = 0
    restarted_at: float | None = None
    stored_at: float | None = None

    @property
    def backoff_seconds(self) -> float:
        """The backoff after the last restart, in seconds."""
        return RESTART_BACKOFF.delay(self.restarts - 1)


def next_state(state: StoreState, check: StoreCheck, now: float) -> tuple[StoreState, StoreAction]:
    """The state after this check, and the action. `now` is in seconds of a monotonic clock."""
    if check.stored and not check.failed and not check.silent:
        is_stable = state.restarted_at is None or now - state.restarted_at > RESTART_BACKOFF.cap
        restarts = 0 if is_stable else state.restarts
        return StoreState(restarts=restarts, restarted_at=state.restarted_at, stored_at=now), StoreAction.NOTHING
    since = now if state.unstored_since is None else state.unstored_since
    state = replace(state, unstored_since=since, was_short=state.was_short or check.short)
    if check.health is None and not check.silent:
        # The server is starting, has ended, or was stopped. The owner of its process restarts it if needed.
        return state, StoreAction.WAIT if check.short else StoreAction.NOTHING
    if check.short or not _needs_restart(state, check, now) or _is_in_backoff(state, now):
        return state, StoreAction.WAIT
    return replace(state, restarts=state.restarts + 1, restarted_at=now, was_short=False), StoreAction.RESTART


def _needs_restart(state: StoreState, check: StoreCheck, now: float) -> bool:
    if check.failed:
        return True
    unstored = now - (state.unstored_since if state.unstored_since is not None else now)
    unavailable = check.silent or (check.alone and not check.stored)
    return unavailable and (state.was_short or unstored >= UNACKNOWLEDGED_SECONDS)


def _is_in_backoff(state: StoreState, now: float) -> bool:
    return state.restarted_at is not None and now - state.restarted_at < state.backoff_seconds
