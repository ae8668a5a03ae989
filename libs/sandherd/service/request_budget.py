"""Limits the cost of each project's requests per minute, by two token buckets: one of seconds, one of rows."""

from dataclasses import dataclass
from typing import Final

MINUTE: Final = 60.0


@dataclass(frozen=True)
class Budget:
    """The processing time in seconds, and the returned rows, that a project may use per minute or at once."""

    seconds: float
    rows: float


@dataclass
class _Remaining:
    seconds: float
    rows: float
    at: float


class Budgets:
    """The remaining budget of each project. `now` is in seconds of a monotonic clock.

    A request is accepted while some budget is left. It may exceed the budget: its cost is known after it is processed.
    """

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._remaining: dict[str, _Remaining] = {}

    def wait(self, project: str, now: float) -> float:
        """Seconds until the project may send the next request; 0 if it may send it now."""
        left = self._refill(project, now)
        if left is None:
            return 0.0
        missing = max(-left.seconds / self._budget.seconds, -left.rows / self._budget.rows)
        return max(0.0, missing) * MINUTE

    def spend(self, project: str, seconds: float, rows: int, now: float) -> None:
        """Subtract the cost of a reply."""
        left = self._refill(project, now) or _Remaining(self._budget.seconds, self._budget.rows, now)
        left.seconds -= seconds
        left.rows -= rows
        self._remaining[project] = left

    def _refill(self, project: str, now: float) -> _Remaining | None:
        left = self._remaining.get(project)
        if left is None:
            return None
        share = (now - left.at) / MINUTE
        left.seconds = min(self._budget.seconds, left.seconds + share * self._budget.seconds)
        left.rows = min(self._budget.rows, left.rows + share * self._budget.rows)
        left.at = now
        if left.seconds >= self._budget.seconds and left.rows >= self._budget.rows:
            del self._remaining[project]
            return None
        return left
