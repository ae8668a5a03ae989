"""The progress of a measurement: a live line on a terminal, else a line at the beginning and end of each group."""

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from shutil import get_terminal_size
from types import TracebackType
from typing import Literal, Self

from rich.console import Console
from rich.live import Live
from rich.text import Text

from tests.bench.tables import WIDTH, duration


@dataclass(frozen=True)
class Step:
    """The current run of a group, and the number of its results. Empty before its first run."""

    figure: str = ""
    run: int = 0
    runs: int = 0
    results: int = 0
    expected: int = 0


def remaining(
    elapsed: float, step: Step, group: str, later: Sequence[str], earlier: Mapping[str, float]
) -> float | None:
    """The estimated seconds until all groups are measured; None if nothing is known yet.

    `elapsed` is the time of the current group. `earlier` has the time of each group in this measurement or in the last
    one. The time of the current group is estimated from its results if it is not in `earlier`; a later group that is
    not in it is estimated as the mean of the known ones.
    """
    known = dict(earlier)
    if group not in known and step.results:
        known[group] = elapsed * step.expected / step.results
    if not known:
        return None
    mean = sum(known.values()) / len(known)
    return max(0.0, known.get(group, mean) - elapsed) + sum(known.get(name, mean) for name in later)


def live_line(group: str, step: Step, elapsed: float, rest: float | None) -> str:
    """The live line: `ingest  ingest.latency_200  run 2 of 3  45 s  about 3 min 20 s left`."""
    run = f"run {step.run} of {step.runs}" if step.runs else "starting"
    left = "" if rest is None else f"about {duration(rest)} left"
    return "  ".join(part for part in (group, step.figure, run, duration(elapsed), left) if part)


class Screen:
    """Standard output: permanent lines, and below them the live line if it is a terminal."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or terminal()
        self._line = Text()
        self._live: Live | None = None

    def __enter__(self) -> Self:
        if self.console.is_terminal and not self.console.is_dumb_terminal:
            self._live = Live(
                Text(), console=self.console, auto_refresh=False, transient=True,
                redirect_stdout=False, redirect_stderr=False,
            )  # fmt: skip
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.update(Text())
            self._live.stop()
            self._live = None

    def print(self, *lines: Text) -> None:
        """Print permanent lines."""
        for line in lines:
            self.console.print(line, soft_wrap=True)

    def begin(self, line: str) -> None:
        """Print that a group begins, where there is no live line that shows it."""
        if self._live is None:
            self.print(Text(line))

    def show(self, line: str) -> None:
        """Replace the live line, if there is one; it is cut off at the width of the terminal."""
        if self._live is not None:
            text = Text(line, no_wrap=True, overflow="ellipsis")
            text.truncate(min(WIDTH, self.console.width) - 1, overflow="ellipsis")
            self._live.update(text, refresh=True)


def terminal() -> Console:
    """A console for standard output, at most `WIDTH` wide. With `NO_COLOR` nothing is coloured or bold."""
    width = min(WIDTH, get_terminal_size((WIDTH, 24)).columns)
    colours: Literal["auto"] | None = None if os.environ.get("NO_COLOR") else "auto"
    return Console(width=width, highlight=False, force_terminal=sys.stdout.isatty(), color_system=colours)
