"""The statistics of a figure: the median, the range and the ratio to the baseline, computed from its runs.

A figure has one part (`VALUE`) or several, such as `p50` and `p99` of a latency. All functions are pure.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final, Literal

VALUE: Final = "value"
"""The part of a figure that has only one."""
FEWEST_RUNS: Final = 3

Direction = Literal["lower", "higher"]
Parts = Mapping[str, float]


@dataclass(frozen=True)
class Figure:
    """The identity of a figure. `better` says in which direction it improves."""

    name: str
    unit: str
    better: Direction = "lower"


@dataclass(frozen=True)
class Sample:
    """One run of a figure: its parts, and those of the baseline that was measured in the same run."""

    ours: Parts
    baseline: Parts

    def ratios(self) -> dict[str, float]:
        """The ratio of each part to the same part of the baseline, or to its only one; none to a baseline of 0."""
        found = {}
        for part, number in self.ours.items():
            beside = self.baseline.get(part, self.baseline.get(VALUE, 0.0))
            if beside:
                found[part] = number / beside
        return found


@dataclass(frozen=True)
class Spread:
    """The median of some runs, the lowest and the highest, and how many there were."""

    median: float
    low: float
    high: float
    runs: int

    @property
    def width(self) -> float:
        """The difference between the highest and the lowest."""
        return self.high - self.low


@dataclass(frozen=True)
class Part:
    """One part of a figure: the spread of its runs, of the baseline's, and of the ratio of each run.

    `ratio` is absent if one of the runs has no ratio: the others would not represent all runs.
    """

    ours: Spread
    baseline: Spread | None = None
    ratio: Spread | None = None


@dataclass(frozen=True)
class Measured:
    """A figure with the results of its runs. `samples` is empty if the file that it is from has none."""

    figure: Figure
    parts: Mapping[str, Part]
    samples: tuple[Sample, ...] = ()


def spread(numbers: Sequence[float]) -> Spread:
    """The spread of at least one number."""
    return Spread(median(numbers), min(numbers), max(numbers), len(numbers))


def summarize(figure: Figure, samples: Sequence[Sample]) -> Measured:
    """A figure from its runs. Raises `ValueError` if there are fewer than `FEWEST_RUNS`, or if their parts differ."""
    if len(samples) < FEWEST_RUNS:
        raise ValueError(f"{figure.name} has {len(samples)} of at least {FEWEST_RUNS} runs")
    if len({frozenset(sample.ours) for sample in samples}) > 1:
        raise ValueError(f"the runs of {figure.name} have different parts")
    return Measured(figure, {part: _part(part, samples) for part in samples[0].ours}, tuple(samples))


def _part(name: str, samples: Sequence[Sample]) -> Part:
    baseline = [sample.baseline.get(name, sample.baseline.get(VALUE)) for sample in samples]
    beside = [number for number in baseline if number is not None]
    ratios = [found[name] for sample in samples if name in (found := sample.ratios())]
    return Part(
        spread([sample.ours[name] for sample in samples]),
        spread(beside) if len(beside) == len(samples) else None,
        spread(ratios) if len(ratios) == len(samples) else None,
    )
