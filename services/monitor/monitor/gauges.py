"""The monitor's gauges for the sandboxes that this replica watches.

To get values of the herd, sum them over all replicas.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from monitor.herd import Herd
from sandherd.telemetry.meters import Meters

_GAUGES: Final = (
    "sandherd_watched_sandboxes",
    "sandherd_heartbeat_age_seconds",
    "sandherd_spool_events",
    "sandherd_spool_deepest_events",
    "sandherd_calls_in_flight",
    "sandherd_monitor_lag_messages",
    "sandherd_outage_sandboxes",
)


def measure(meters: Meters, herds: Sequence[Herd], now: datetime) -> None:
    """Set the gauges to the state of these partitions at `now`."""
    live = [state for herd in herds for state in herd.live.values()]
    ages = [(now - state.last_sign_at).total_seconds() for state in live if not state.paused]
    spools = [state.spool for state in live]
    meters.set("sandherd_watched_sandboxes", len(live))
    meters.set("sandherd_heartbeat_age_seconds", max(ages, default=0.0))
    meters.set("sandherd_spool_events", sum(spools))
    meters.set("sandherd_spool_deepest_events", max(spools, default=0))
    outages = sum(state.outage is not None and state.finished_at is None for state in live)
    meters.set("sandherd_outage_sandboxes", outages)
    meters.set("sandherd_calls_in_flight", sum(len(state.in_flight) for state in live))


def remove(meters: Meters) -> None:
    """Remove the gauges, because other replicas publish them from now on."""
    meters.hide(*_GAUGES)
