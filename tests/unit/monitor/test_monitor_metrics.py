"""The monitor's gauges of the herd."""

from collections.abc import Callable
from datetime import datetime
from typing import Any

from prometheus_client import CollectorRegistry

from monitor.gauges import measure, remove
from monitor.herd import Herd
from sandherd.telemetry.meters import Meters


def test_gauges_cover_living_sandboxes_only(story: Any, after: Callable[[float], datetime]) -> None:
    """The last heartbeat's depth counts; ended and paused sandboxes are left out."""
    registry, herds = CollectorRegistry(), [Herd(), Herd()]
    for seen in (
        story.seen("agent.heartbeat", 0, "sbx-1", timestamp=after(0), spool_depth=50),
        story.seen("agent.heartbeat", 30, "sbx-1", timestamp=after(30), spool_depth=7),
        story.seen("agent.heartbeat", 20, "sbx-2", timestamp=after(20), spool_depth=2),
        story.seen("agent.tool_use", 25, "sbx-2", tool="Bash", tool_use_id="c1"),
        story.seen("agent.heartbeat", 0, "sbx-3", timestamp=after(0), spool_depth=900),
        story.seen("sandbox.terminated", 5, "sbx-3"),
        story.seen("agent.heartbeat", 0, "sbx-4", timestamp=after(0)),
        story.seen("sandbox.paused", 1, "sbx-4"),
    ):
        herds[seen.entity == "sbx-2"].fold(seen)
    measure(meters := Meters(registry), herds, after(40))
    names = ("watched_sandboxes", "spool_events", "spool_deepest_events", "heartbeat_age_seconds", "calls_in_flight")
    shown = {name: registry.get_sample_value(f"sandherd_{name}") for name in names}
    assert list(shown.values()) == [3, 9, 7, 15, 1]
    remove(meters)
    assert {registry.get_sample_value(f"sandherd_{name}") for name in names} == {None}
