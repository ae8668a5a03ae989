"""What the gauges show of all tasks and sandboxes, as the one replica sees it that sweeps."""

from collections import Counter
from collections.abc import Collection
from datetime import datetime
from typing import Final

from sandherd.contracts.requests import SandboxView
from sandherd.contracts.states import SandboxState, TaskState
from spawner.live import Live

_GAUGES: Final = ("sandherd_tasks", "sandherd_sandboxes", "sandherd_sandboxes_limit", "sandherd_sandboxes_kept")


class Measures:
    """Measures the herd, pass after pass."""

    def __init__(self, live: Live, runtimes: Collection[str], limit: int) -> None:
        self._live = live
        self._runtimes = runtimes
        self._limit = limit
        self._since: datetime | None = None
        self._counted: dict[str, float] = {}

    def begin(self) -> None:
        """From now on, if not since earlier, it is ours to measure; what went before was counted by another."""
        if self._since is None:
            self._since = self._live.now()
            self._counted.clear()

    def leave(self) -> None:
        """Show nothing more of what another replica shows now: who adds both up would see a herd twice as large."""
        self._since = None
        self._live.meters.forget(*_GAUGES)

    def take(self) -> None:
        """Measure now."""
        self._measure_tasks()
        self._measure_sandboxes()
        self._count_time()

    def _measure_tasks(self) -> None:
        states = Counter(view.state for view in self._live.task_index.views())
        for state in TaskState:
            self._live.meters.set("sandherd_tasks", states[state], state=state)

    def _measure_sandboxes(self) -> None:
        found = Counter((view.state, view.runtime) for view in self._live.sandbox_index.views())
        for runtime in {*self._runtimes, *(runtime for _, runtime in found)}:
            for state in SandboxState:
                self._live.meters.set("sandherd_sandboxes", found[state, runtime], state=state, runtime=runtime)
        self._live.meters.set("sandherd_sandboxes_limit", self._limit)

    def _count_time(self) -> None:
        """How long each has lived since it was looked at last; also one that came and went in between."""
        now, since = self._live.now(), self._since
        if since is None:
            return
        lived: dict[str, float] = {}
        for key, known in self._live.sandbox_index.items():
            view = known.view
            lived[key] = _lived(view, view.ended_at or now)
            more = lived[key] - self._counted.get(key, _lived(view, min(since, view.ended_at or since)))
            self._live.meters.count("sandherd_sandbox_seconds_total", max(0.0, more), runtime=view.runtime)
        self._counted = lived


def _lived(view: SandboxView, until: datetime) -> float:
    return max(0.0, (until - view.requested_at).total_seconds())
