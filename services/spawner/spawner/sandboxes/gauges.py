"""Gauges of all tasks and sandboxes, exported by the replica that sweeps."""

from collections import Counter
from collections.abc import Collection
from datetime import datetime
from typing import Final

from sandherd.contracts.requests import SandboxView
from sandherd.contracts.states import SandboxState, TaskState
from sandherd.telemetry.labels import OTHER, RUNTIME
from spawner.live_state import LiveState

_GAUGES: Final = ("sandherd_tasks", "sandherd_sandboxes", "sandherd_sandboxes_limit", "sandherd_sandboxes_kept")


class SpawnerGauges:
    """Updates the gauges at each sweep."""

    def __init__(self, live: LiveState, runtimes: Collection[str], limit: int) -> None:
        self._live = live
        self._runtimes = runtimes
        self._limit = limit
        self._since: datetime | None = None
        self._counted_seconds: dict[str, float] = {}

    def start(self) -> None:
        """Begin to count sandbox seconds, unless begun before. Another replica has counted the time until now."""
        if self._since is None:
            self._since = self._live.now()
            self._counted_seconds.clear()

    def remove(self) -> None:
        """Remove the gauges that another replica exports now: a sum over both would count the herd twice."""
        self._since = None
        self._live.meters.hide(*_GAUGES)

    def update(self) -> None:
        """Update the gauges."""
        self._measure_tasks()
        self._measure_sandboxes()
        self._count_time()

    def _measure_tasks(self) -> None:
        states = Counter(view.state for view in self._live.task_index.views())
        for state in TaskState:
            self._live.meters.set("sandherd_tasks", states[state], state=state)

    def _measure_sandboxes(self) -> None:
        # Runtimes of plugins have no label of their own: all of them are counted together, as one value of the gauge.
        found = Counter((view.state, _label(view.runtime)) for view in self._live.sandbox_index.views())
        for runtime in {*map(_label, self._runtimes), *(runtime for _, runtime in found)}:
            for state in SandboxState:
                self._live.meters.set("sandherd_sandboxes", found[state, runtime], state=state, runtime=runtime)
        self._live.meters.set("sandherd_sandboxes_limit", self._limit)

    def _count_time(self) -> None:
        """Count the time that each sandbox was live since the last update, even if it started and ended in between."""
        now, since = self._live.now(), self._since
        if since is None:
            return
        lived: dict[str, float] = {}
        for key, known in self._live.sandbox_index.items():
            view = known.view
            lived[key] = _live_seconds(view, view.ended_at or now)
            new_seconds = lived[key] - self._counted_seconds.get(
                key, _live_seconds(view, min(since, view.ended_at or since))
            )
            self._live.meters.count("sandherd_sandbox_seconds_total", max(0.0, new_seconds), runtime=view.runtime)
        self._counted_seconds = lived


def _live_seconds(view: SandboxView, until: datetime) -> float:
    return max(0.0, (until - view.requested_at).total_seconds())


def _label(runtime: str) -> str:
    return runtime if runtime in RUNTIME.values else OTHER
