"""The latency of a repeated operation."""

import statistics
from dataclasses import dataclass


@dataclass(frozen=True)
class Latency:
    """The median and the 99th percentile of `count` times, in milliseconds."""

    p50: float
    p99: float
    count: int


def latency_of(seconds: list[float]) -> Latency:
    """The latency from at least two times."""
    cuts = statistics.quantiles(seconds, n=100, method="inclusive")
    return Latency(p50=cuts[49] * 1000, p99=cuts[98] * 1000, count=len(seconds))
