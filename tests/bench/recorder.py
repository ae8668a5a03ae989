"""What a group's process reports to the bench: which run of a figure it begins, each result, and why it failed.

One JSON object per line: `{"begin": FIGURE, "run": N}`, `{"figure": NAME, "ours": {…}, "baseline": {…}}`, and at the
end `{"end": null}` or `{"end": REASON}`.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any, TextIO

from tests.bench.figures import VALUE
from tests.bench.latency import Latency

Result = float | Mapping[str, float] | Latency


class Recorder:
    """Given to a group's coroutine, which measures each of its figures `runs` times."""

    def __init__(self, runs: int, pipe: TextIO) -> None:
        self.runs = runs
        self._pipe = pipe

    def each(self, figure: str) -> Iterator[int]:
        """The numbers of the runs, from 1. Reports the beginning of each as a run of this figure."""
        for run in range(1, self.runs + 1):
            self.begin(figure, run)
            yield run

    def begin(self, figure: str, run: int) -> None:
        """Report that a run of this figure begins."""
        self._send(begin=figure, run=run)

    def add(self, figure: str, ours: Result, baseline: Result | None = None) -> None:
        """Record the result of a run, and that of the baseline in the same run."""
        self._send(figure=figure, ours=_parts(ours), baseline={} if baseline is None else _parts(baseline))

    def end(self, reason: str | None = None) -> None:
        """Report the end, or the reason why the group failed."""
        self._send(end=reason)

    def _send(self, **message: Any) -> None:
        self._pipe.write(json.dumps(message) + "\n")
        self._pipe.flush()


def _parts(result: Result) -> dict[str, float]:
    if isinstance(result, Latency):
        return {"p50": _number(result.p50), "p99": _number(result.p99)}
    if isinstance(result, Mapping):
        return {name: _number(number) for name, number in result.items()}
    return {VALUE: _number(result)}


def _number(number: float) -> float:
    """A number rounded to six digits: no measurement has more."""
    return float(f"{number:.6g}")
