"""What telemetry costs event-ingest: its throughput with all telemetry, beside that without any.

With it: every counter, a Prometheus that scrapes several times as often as usual, and a collector that takes spans, and
metrics at the default interval. Without it: no exporter and no scrapes, and the counters do nothing. Then the same with
a collector that hangs. The CPU time for each event shows the same, and is also reliable on a busy machine.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

from tests.bench.ingest import OURS, Bench, free_port, listening, running
from tests.bench.recorder import Recorder

_SILENT: Final = "tests.bench.telemetry_silent"


@asynccontextmanager
async def collector(mood: str) -> AsyncIterator[dict[str, str]]:
    """A collector in a separate process, which also scrapes metrics. Yields event-ingest's settings for it."""
    port, metrics = await free_port(), await free_port()
    async with running(["-m", "tests.bench.telemetry_collector", str(port), str(metrics), mood], {}):
        await listening(f"http://127.0.0.1:{port}/")
        yield {
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{port}",
            "SANDHERD_HTTP_PORT": str(metrics),
        }


async def measure(recorder: Recorder) -> None:
    """Measure events per second and CPU microseconds per event, with telemetry on, and with a hanging collector."""
    async with Bench.open() as bench:
        for run in recorder.each("telemetry.throughput"):
            off, cost_off = await _run(bench, module=_SILENT)
            for mood, suffix in (("takes", ""), ("hangs", "_hanging")):
                recorder.begin(f"telemetry.throughput{suffix}", run)
                async with collector(mood) as settings:
                    ours, cost = await _run(bench, variables=settings)
                recorder.add(f"telemetry.throughput{suffix}", ours, off)
                recorder.add(f"telemetry.cost{suffix}", cost, cost_off)


async def _run(bench: Bench, **how: Any) -> tuple[float, float]:
    """Events per second and CPU microseconds per event of one run."""
    rate = await bench.throughput(OURS, **how)
    return rate, bench.spent * 1_000_000
