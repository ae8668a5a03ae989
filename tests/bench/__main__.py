"""`make bench`: every figure beside its baseline, measured in the same run, on the real parts.

Prints a table and writes `build/bench.json`: `{name: {value, unit, baseline, ratio, …}}`. It judges nothing.
"""

import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from statistics import median
from typing import Any, Final
from unittest.mock import patch

from rich.console import Console
from rich.table import Table

from sandherd.client import Context, Herd
from sandherd.stack.control import down, up
from tests.bench import (
    delivery,
    emitting,
    idling,
    losing,
    queueing,
    runtimes,
    scheduling,
    spawning,
    starting,
    watching,
    working,
)
from tests.bench.agents import listening_agent
from tests.bench.delivery import Spread
from tests.engines.docker import IMAGE, Engine

ROOT: Final = Path(__file__).parent.parent.parent
RESULT: Final = ROOT / "build" / "bench.json"

Figure = dict[str, Any]


def latency(ours: Spread, baseline: Spread) -> Figure:
    """A latency in milliseconds; the ratio is ours to the baseline's at the 99th percentile."""
    return {
        "value": {"p50": round(ours.p50, 2), "p99": round(ours.p99, 2)},
        "unit": "ms",
        "baseline": {"p50": round(baseline.p50, 2), "p99": round(baseline.p99, 2)},
        "ratio": round(ours.p99 / baseline.p99, 4),
    }


def rate(ours: float, baseline: float, unit: str = "events/s") -> Figure:
    """A rate; the ratio is ours to the baseline's."""
    return {"value": round(ours), "unit": unit, "baseline": round(baseline), "ratio": round(ours / baseline, 3)}


def median_ratio(ours: Spread, baseline: Spread) -> Figure:
    """The same as `latency`, with the ratio of the medians: of few times the 99th percentile is one of them."""
    return latency(ours, baseline) | {"ratio": round(ours.p50 / baseline.p50, 3), "ratio_of": "p50"}


@asynccontextmanager
async def stack(told: Mapping[str, str] | None = None) -> AsyncIterator[tuple[Herd, Path]]:
    """A whole stack of its own, told these settings; a client of it, and where it is."""
    with tempfile.TemporaryDirectory(prefix="bench-") as directory, patch.dict(os.environ, told or {}):
        home = Path(directory)
        await up(home)
        try:
            async with Herd.connect(Context.resolve(home=home, environ={})) as herd:
                yield herd, home
        finally:
            await down(home)


async def on_the_stack() -> dict[str, Figure]:
    """The figures that a whole stack is needed for."""
    async with stack() as (herd, _):
        submitted = await spawning.measure_submit(herd)
        async with listening_agent(herd) as (sandbox, arrival):
            sent = await delivery.measure_relay(herd.connection.bus, herd.project, sandbox, arrival)
    by_hand = await spawning.measure_by_hand()
    polled = await delivery.measure_poll()
    return {"message.delivery": latency(sent, polled), "spawn.start": median_ratio(submitted, by_hand)}


async def of_the_queue() -> dict[str, Figure]:
    """What the queue takes, with a runtime that does nothing, with a thousand tasks in it, and without a broker."""
    ours, baseline = await queueing.measure_queue()
    many, few = scheduling.measure_decisions()
    async with stack(starting.SETTINGS) as (herd, home):
        by_hand = await spawning.measure_by_hand()
        empty = await starting.measure_start(herd)
        warm = await starting.measure_start(herd, profile=starting.WARM)
        await starting.crowd_in(home)
        crowded = await starting.measure_start(herd)
    return {
        "queue.throughput": rate(ours, baseline, "tasks/s"),
        "scheduling.decision": {
            "value": round(many, 1), "unit": "µs", "baseline": round(few, 1), "ratio": round(many / few, 3),
        },
        "spawn.start_empty": median_ratio(empty, by_hand),
        "spawn.start_1000": median_ratio(crowded, empty),
        "spawn.warm": median_ratio(warm, empty),
    }  # fmt: skip


async def of_the_worker() -> dict[str, Figure]:
    """What a worker brings out, and what it costs beside its agent."""
    idle, empty = await watching.measure_idle_tree()
    emitted, written = await emitting.measure_emit()
    async with working.bench() as at:
        told, published = await working.measure_events(at)
        memory, bare = await working.measure_memory(at)
        started, connected = await working.measure_worker_start(at)
    return {
        "worker.idle_tree": {
            "value": round(idle * 100, 2), "unit": "% of a core", "baseline": round(empty * 100, 2),
            "ratio": round(idle / empty, 2),
        },
        "worker.emit": latency(emitted, written),
        "worker.events": rate(told, published),
        "worker.memory": {"value": memory, "unit": "MiB", "baseline": bare, "ratio": round(memory["now"] / bare, 2)},
        "worker.start": median_ratio(started, connected),
    }  # fmt: skip


async def of_the_runtimes() -> dict[str, Figure]:
    """What each runtime that runs here takes, beside the same without us."""
    found: dict[str, Figure] = {}
    for name, measuring in (("process", runtimes.measure_process), ("docker", runtimes.measure_docker)):
        (made, bare), (ran, plain) = await measuring()
        found[f"runtime.{name}.create"] = median_ratio(made, bare)
        found[f"runtime.{name}.exec"] = median_ratio(ran, plain)
    return found


async def of_the_cluster() -> dict[str, Figure]:
    """What it costs when the leader among three servers is killed."""
    ours, theirs = await losing.measure_lost_leader()
    return {
        "cluster.lost_leader": {
            "value": {"p50": round(median(ours), 1), "max": round(max(ours), 1)}, "unit": "s",
            "baseline": {"p50": round(median(theirs), 1), "max": round(max(theirs), 1)},
            "ratio": round(median(ours) / median(theirs), 3), "ratio_of": "p50",
        }
    }  # fmt: skip


async def of_idling() -> dict[str, Figure]:
    """What is taken of a machine on which nobody has anything to do."""
    async with stack() as (herd, home):
        found = await idling.figures(herd, home)
    real = await asyncio.to_thread(Engine().__enter__)  # it has a loop of its own for a moment
    try:
        async with stack(containers(real)) as (herd, home):
            return found | await idling.of_containers(herd, home) | idling.of_clients()
    finally:
        await asyncio.to_thread(real.__exit__, None, None, None)


def containers(engine: Engine) -> dict[str, str]:
    """Settings of a stack whose sandboxes are containers of this engine."""
    return {
        "SANDHERD_RUNTIME": "docker",
        "SANDBOX_IMAGE": IMAGE,
        "SANDHERD_DOCKER_NETWORK": "host",
        "DOCKER_HOST": engine.host,
    }


async def measure() -> dict[str, Figure]:
    """All figures, one after the other, so that none disturbs another."""
    from tests.bench import ingest, network, request_fairness, room, telemetry

    return (
        await of_idling()
        | await ingest.figures(rate, latency)
        | await request_fairness.figures(latency)
        | await room.figures()
        | await telemetry.figures(rate)
        | await of_the_worker()
        | await of_the_runtimes()
        | await network.figures()
        | await on_the_stack()
        | await of_the_queue()
        | await of_the_cluster()
    )


def show(figures: Mapping[str, Figure], seconds: float) -> None:
    """Print the table."""
    table = Table("figure", "ours", "baseline", "ratio", "unit", title=f"Measured in {seconds:.0f} s")
    for name, figure in figures.items():
        table.add_row(name, _text(figure["value"]), _text(figure["baseline"]), str(figure["ratio"]), figure["unit"])
    Console().print(table)


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return "  ".join(f"{name} {number}" for name, number in value.items())
    return str(value)


def main() -> int:
    """Measure, print and write. Returns the exit status."""
    begun = time.monotonic()
    figures = asyncio.run(measure())
    RESULT.parent.mkdir(exist_ok=True)
    RESULT.write_text(json.dumps(figures, indent=2) + "\n")
    show(figures, time.monotonic() - begun)
    return 0


if __name__ == "__main__":
    sys.exit(main())
