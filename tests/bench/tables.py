"""The results as lines of text, at most `WIDTH` columns wide."""

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Final

from rich.cells import cell_len
from rich.text import Text

from tests.bench.catalog import Group
from tests.bench.comparison import Change, Comparison
from tests.bench.figures import VALUE, Figure, Measured, Spread
from tests.bench.results import GroupResult

WIDTH: Final = 80
_LABEL: Final = 34
_COLUMN: Final = 9
_STYLES: Final = {"better": "green", "worse": "red", "within spread": ""}

LEGEND: Final = "median, min, max: of the runs; baseline: its median; ratio: median of the ratios of each run"
COMPARED: Final = (
    "better, worse: the medians differ by more than the spread (max - min) before and after; "
    "ratio: to the baseline measured in the same run"
)
SINGLE: Final = "; the earlier file has one run of each figure, and so no spread: small changes count"


def number(value: float | None) -> str:
    """A number in at most eight characters, with four significant digits."""
    if value is None:
        return "-"
    text = f"{value:.0f}" if 1000 <= abs(value) < 1e7 else f"{value:.4g}"
    return text if len(text) < _COLUMN else f"{value:.2g}"


def duration(seconds: float) -> str:
    """A duration as `45 s`, `3 min 20 s` or `1 h 5 min`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def wrap(text: str, indent: str = "") -> list[Text]:
    """Wrap a text into lines of the width; also a word that is longer than a line."""
    return [Text(line) for line in textwrap.wrap(text, WIDTH, subsequent_indent=indent) or [""]]


def result_lines(results: Sequence[GroupResult]) -> Iterator[Text]:
    """A block of lines for each group."""
    for result in results:
        yield Text()
        yield from _styled(wrap(_heading(result), "  "), "bold")
        yield _row("", ["median", "min", "max", "baseline", "ratio"], "dim")
        for measured in result.figures:
            yield from _figure_lines(measured)
    yield Text()
    yield from wrap(LEGEND)


def comparison_lines(comparison: Comparison) -> Iterator[Text]:
    """A row for each part and each ratio, then the figures that could not be compared."""
    yield Text()
    yield _row("", ["before", "after", "change"], "dim") if comparison.changes else Text("no figure can be compared")
    for figure, changes in comparison.changes.items():
        yield from wrap(f"{figure.name} ({figure.unit})", "  ")
        for change in changes:
            yield from _change_lines(change)
    if comparison.changes:
        yield Text()
        yield from wrap(COMPARED + (SINGLE if comparison.single else ""))
    for problem in comparison.problems:
        yield from _styled(wrap(f"not compared: {problem}", "  "), "yellow")


def group_lines(groups: Iterable[Group]) -> Iterator[Text]:
    """The lines of the groups with their figures."""
    for group in groups:
        yield from _styled(wrap(f"{group.name}: {group.summary}", "  "), "bold")
        names = ", ".join(figure.name for figure in group.figures)
        yield from (Text(line) for line in textwrap.wrap(names, WIDTH, initial_indent="  ", subsequent_indent="  "))


def date(moment: datetime) -> str:
    """A date and time in UTC."""
    return f"{moment:%Y-%m-%d %H:%M} UTC"


def _heading(result: GroupResult) -> str:
    commit = f", commit {result.commit}" if result.commit else ""
    return f"{result.group}: {result.runs} runs, {duration(result.seconds)}, {date(result.measured_at)}{commit}"


def _figure_lines(measured: Measured) -> Iterator[Text]:
    label = _titled(measured.figure)
    if measured.parts.keys() == {VALUE} and cell_len(label) <= _LABEL:
        yield _row(label, _numbers(measured, VALUE))
        return
    yield from wrap(label, "  ")
    for part in measured.parts:
        yield from _labelled("" if part == VALUE else part, _numbers(measured, part))


def _titled(figure: Figure) -> str:
    return f"{figure.name} ({figure.unit})"


def _numbers(measured: Measured, part: str) -> list[str]:
    found = measured.parts[part]
    medians = [_median(found.baseline), _median(found.ratio)]
    return [number(one) for one in (found.ours.median, found.ours.low, found.ours.high, *medians)]


def _median(spread: Spread | None) -> float | None:
    return None if spread is None else spread.median


def _change_lines(change: Change) -> Iterator[Text]:
    percent = "-" if change.percent is None else f"{change.percent:+.1f} %"
    if len(percent) >= _COLUMN:
        percent = f"{change.percent:+.0e} %"
    columns = [number(change.before), number(change.after), percent]
    yield from _labelled("" if change.part == VALUE else change.part, columns, f"  {change.verdict}", change.verdict)


def _labelled(label: str, columns: Sequence[str], after: str = "", style: str = "") -> Iterator[Text]:
    """A row below a figure's name; a label that is too long has its own lines."""
    if cell_len(label) > _LABEL - 2:
        yield from (Text(f"  {line}") for line in textwrap.wrap(label, WIDTH - 2))
        label = ""
    yield _row(f"  {label}", columns, after=after, verdict=style)


def _row(label: str, columns: Sequence[str], style: str = "", *, after: str = "", verdict: str = "") -> Text:
    padding = " " * (_LABEL - cell_len(label))
    row = Text(label + padding + "".join(f"{column:>{_COLUMN}}" for column in columns), style)
    return row.append(after, _STYLES.get(verdict, ""))


def _styled(lines: list[Text], style: str) -> Iterator[Text]:
    for line in lines:
        line.stylize(style)
        yield line
