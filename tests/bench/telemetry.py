"""What telemetry costs event-ingest: its throughput while all of it is on, and beside that with nothing counted at all.

On: every counter, Prometheus asking every second, and a collector that takes spans and metrics. Off: no exporter,
nobody asks, and the counters do nothing. Then the same with a collector that hangs. What is spent of a processor for
each event says the same, and says it on a busy machine, too.
"""

import statistics
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from tests.bench.ingest import OURS, Bench, free_port, listening, running

RUNS: Final = 5
_SILENT: Final = "tests.bench.telemetry_silent"

Figure = dict[str, Any]


@asynccontextmanager
async def collector(mood: str) -> AsyncIterator[dict[str, str]]:
    """A collector in a process of its own, which also asks for metrics; what event-ingest has to be told."""
    port, metrics = await free_port(), await free_port()
    async with running(["-m", "tests.bench.telemetry_collector", str(port), str(metrics), mood], {}):
        await listening(f"http://127.0.0.1:{port}/")
        yield {
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{port}",
            "OTEL_METRIC_EXPORT_INTERVAL": "1000",
            "SANDHERD_HTTP_PORT": str(metrics),
        }


@dataclass
class Runs:
    """What came of some runs."""

    rates: list[float] = field(default_factory=list)
    spent: list[float] = field(default_factory=list)

    def note(self, events_per_second: float, spent: float) -> None:
        """One more."""
        self.rates.append(events_per_second)
        self.spent.append(spent * 1_000_000)

    @property
    def rate(self) -> float:
        """The median."""
        return statistics.median(self.rates)

    @property
    def cost(self) -> float:
        """The median, in microseconds for an event."""
        return statistics.median(self.spent)


async def figures(rate: Callable[[float, float], Figure], count: int = OURS, runs: int = RUNS) -> dict[str, Figure]:
    """Each the median of runs that alternate."""
    off, loud, hanging = Runs(), Runs(), Runs()
    async with Bench.open() as bench:
        for _ in range(runs):
            off.note(await bench.throughput(count, module=_SILENT), bench.spent)
            for mood, found in (("takes", loud), ("hangs", hanging)):
                async with collector(mood) as told:
                    found.note(await bench.throughput(count, told=told), bench.spent)
    return {
        "telemetry.throughput": rate(loud.rate, off.rate),
        "telemetry.throughput_hanging": rate(hanging.rate, off.rate),
        "telemetry.cost": _cost(loud, off),
        "telemetry.cost_hanging": _cost(hanging, off),
    }


def _cost(ours: Runs, off: Runs) -> Figure:
    return {
        "value": round(ours.cost, 1),
        "unit": "µs/event",
        "baseline": round(off.cost, 1),
        "ratio": round(ours.cost / off.cost, 3),
    }
