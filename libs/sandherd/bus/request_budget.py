"""What the requests of one project may cost within a minute: a bucket of seconds and one of rows for each project."""

from dataclasses import dataclass
from typing import Final

MINUTE: Final = 60.0


@dataclass(frozen=True)
class Budget:
    """What one project may use within a minute, and at most at once."""

    seconds: float
    rows: float


@dataclass
class _Left:
    seconds: float
    rows: float
    at: float


class Budgets:
    """What is left to each project. `now` is in seconds of a monotonic clock.

    A request is let in while anything is left, and may overdraw: what it will cost is not known before it is answered.
    """

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._left: dict[str, _Left] = {}

    def wait(self, project: str, now: float) -> float:
        """In how many seconds the project may ask again; 0 if it may now."""
        left = self._refilled(project, now)
        if left is None:
            return 0.0
        missing = max(-left.seconds / self._budget.seconds, -left.rows / self._budget.rows)
        return max(0.0, missing) * MINUTE

    def spend(self, project: str, seconds: float, rows: int, now: float) -> None:
        """Count what an answer has cost."""
        left = self._refilled(project, now) or _Left(self._budget.seconds, self._budget.rows, now)
        left.seconds -= seconds
        left.rows -= rows
        self._left[project] = left

    def _refilled(self, project: str, now: float) -> _Left | None:
        left = self._left.get(project)
        if left is None:
            return None
        share = (now - left.at) / MINUTE
        left.seconds = min(self._budget.seconds, left.seconds + share * self._budget.seconds)
        left.rows = min(self._budget.rows, left.rows + share * self._budget.rows)
        left.at = now
        if left.seconds >= self._budget.seconds and left.rows >= self._budget.rows:
            del self._left[project]
            return None
        return left
