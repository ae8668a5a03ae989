"""Measures the selected groups one after the other, stores their results, and shows them."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from rich.text import Text

from tests.bench import results
from tests.bench.catalog import Group
from tests.bench.comparison import compare
from tests.bench.figures import Measured
from tests.bench.group_run import GroupFailedError, GroupRun
from tests.bench.machine import commit, machine
from tests.bench.options import ROOT
from tests.bench.progress import Screen, Step, live_line, remaining
from tests.bench.results import GroupResult
from tests.bench.tables import comparison_lines, date, duration, result_lines, wrap


@dataclass
class Session:
    """What is measured, where results go, and the results so far. `runs` is the requested number of runs."""

    groups: Sequence[Group]
    runs: int
    result: Path
    screen: Screen
    found: dict[str, GroupResult] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)

    @property
    def log(self) -> Path:
        """The file with the output of all processes."""
        return self.result.with_suffix(".log")

    def measure(self) -> None:
        """Measure the groups, and store each when it is complete. A failed group stops no other."""
        self.log.parent.mkdir(parents=True, exist_ok=True)
        self.log.write_text("")
        seconds = self._earlier_seconds()
        for place, group in enumerate(self.groups):
            begun = time.monotonic()
            self.screen.begin(f"{group.name}: measuring, {group.runs(self.runs)} runs")
            tick = self._tick(group, [other.name for other in self.groups[place + 1 :]], seconds)
            try:
                self._measure(group, tick)
            except GroupFailedError as error:
                self.failed[group.name] = str(error)
                self.screen.print(*_styled(f"{group.name}: failed: {error}", "red"))
            seconds[group.name] = time.monotonic() - begun

    def _measure(self, group: Group, tick: Callable[[Step], None]) -> None:
        begun, at, version = time.monotonic(), datetime.now(UTC), commit(ROOT)
        with GroupRun(group, self.runs, self.log) as run:
            try:
                figures = run.measure(tick)
            except BaseException:  # raised again: ending takes seconds, which are explained
                self.screen.show(f"{group.name}  ending what was started")
                raise
        seconds = time.monotonic() - begun
        result = GroupResult(
            group=group.name, measured_at=at, commit=version, machine=machine(), seconds=seconds,
            runs=run.runs, figures=figures,
        )  # fmt: skip
        results.store(self.result, result)
        self.found[group.name] = result
        self.screen.print(Text(f"{group.name}: measured in {duration(seconds)}"))

    def _earlier_seconds(self) -> dict[str, float]:
        """The expected seconds of each group: those that it took the last time."""
        known = results.load(self.result)
        earlier = {group: known[group.name] for group in self.groups if group.name in known}
        return {group.name: one.seconds / one.runs * group.runs(self.runs) for group, one in earlier.items()}

    def _tick(self, group: Group, later: Sequence[str], earlier: Mapping[str, float]) -> Callable[[Step], None]:
        begun = time.monotonic()

        def tick(step: Step) -> None:
            elapsed = time.monotonic() - begun
            rest = remaining(elapsed, step, group.name, later, earlier)
            self.screen.show(live_line(group.name, step, elapsed, rest))

        return tick

    def show(self) -> None:
        """Show the results, the dates of others in the same file, and the failures."""
        if self.found:
            self.screen.print(*result_lines(list(self.found.values())))
        stored = results.load(self.result).items()
        if others := [f"{name} ({date(one.measured_at)})" for name, one in stored if name not in self.found]:
            self.screen.print(*wrap(f"Also in {self.result}, measured earlier: {', '.join(others)}"))
        for name, reason in self.failed.items():
            self.screen.print(*_styled(f"{name}: failed: {reason}", "red"))
        if self.failed:
            self.screen.print(*wrap(f"The log is in {self.log}"))

    def compare(self, before: Mapping[str, Measured], most: float | None) -> bool:
        """Show the changes. Returns whether a figure is worse by more than `most` percent."""
        after = {one.figure.name: one for result in self.found.values() for one in result.figures}
        comparison = compare(before, after)
        self.screen.print(*comparison_lines(comparison))
        worse = [] if most is None else comparison.worse_by(most)
        if worse:
            names = ", ".join(f"{figure.name} {change.part}" for figure, change in worse)
            self.screen.print(*_styled(f"worse by more than {most:g} %: {names}", "red"))
        return bool(worse)


def _styled(text: str, style: str) -> Iterator[Text]:
    for line in wrap(text, "  "):
        line.stylize(style)
        yield line
