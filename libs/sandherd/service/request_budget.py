"""Limits the cost of each project's requests per minute, by two token buckets: one of seconds, one of rows."""

from dataclasses import dataclass
from typing import Final

MINUTE_SECONDS: Final = 60.0


@dataclass(frozen=True)
class Budget:
    """The processing time in seconds, and the returned rows, that a project may use per minute or at once."""

    seconds: float
    rows: float


@dataclass
class _Remaining:
    """The remaining budget of one project at a time."""

    seconds: float
    rows: float
    at: float


class Budgets:
    """The remaining budget of each project. `now` is in seconds of a monotonic clock.

    A request is accepted while some budget is left. It may exceed the budget, as its cost is only known afterwards.
    """

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._remaining: dict[str, _Remaining] = {}

    def wait(self, project: str, now: float) -> float:
        """Seconds until the project may send the next request; 0 if it may send it now."""
        remaining = self._refill(project, now)
        if remaining is None:
            return 0.0
        missing = max(-remaining.seconds / self._budget.seconds, -remaining.rows / self._budget.rows)
        return max(0.0, missing) * MINUTE_SECONDS

    def spend(self, project: str, seconds: float, rows: int, now: float) -> None:
        """Subtract the cost of a reply."""
        remaining = self._refill(project, now) or _Remaining(self._budget.seconds, self._budget.rows, now)
        remaining.seconds -= seconds
        remaining.rows -= rows
        self._remaining[project] = remaining

    def _refill(self, project: str, now: float) -> _Remaining | None:
        remaining = self._remaining.get(project)
        if remaining is None:
            return None
        elapsed_minutes = (now - remaining.at) / MINUTE_SECONDS
        remaining.seconds = min(self._budget.seconds, remaining.seconds + elapsed_minutes * self._budget.seconds)
        remaining.rows = min(self._budget.rows, remaining.rows + elapsed_minutes * self._budget.rows)
        remaining.at = now
        if remaining.seconds >= self._budget.seconds and remaining.rows >= self._budget.rows:
            del self._remaining[project]
            return None
        return remaining
