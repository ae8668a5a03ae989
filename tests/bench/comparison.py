"""Compares the figures of two measurements.

A change is better or worse if the medians differ by more than the spread of the runs of either measurement. Figures are
compared by their parts, and by the ratio of each part to its baseline, where both measurements have one.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from tests.bench.figures import VALUE, Direction, Figure, Measured, Part, Spread
from tests.bench.results import FORMAT, ResultError, from_json, read_document

Verdict = Literal["better", "worse", "within spread"]
RATIO: Final = "ratio"


@dataclass(frozen=True)
class Change:
    """One part of a figure before and after. `percent` is None where it was 0 before and is not now."""

    part: str
    before: float
    after: float
    percent: float | None
    verdict: Verdict


@dataclass(frozen=True)
class Comparison:
    """The changes of each figure, and why other figures could not be compared.

    `single` is whether the earlier file has one number for each figure, and so no spread.
    """

    changes: Mapping[Figure, tuple[Change, ...]]
    problems: tuple[str, ...] = ()
    single: bool = False

    def worse_by(self, percent: float) -> list[tuple[Figure, Change]]:
        """The changes that are worse by more than this many percent."""
        return [
            (figure, one)
            for figure, changes in self.changes.items()
            for one in changes
            if one.verdict == "worse" and (one.percent is None or abs(one.percent) > percent)
        ]


def verdict(before: Spread, after: Spread, better: Direction) -> Verdict:
    """Whether a change exceeds both spreads, and in which direction."""
    difference = after.median - before.median
    if abs(difference) <= max(before.width, after.width):
        return "within spread"
    return "better" if (difference < 0) == (better == "lower") else "worse"


def change(part: str, before: Spread, after: Spread, better: Direction) -> Change:
    """A part of a figure before and after."""
    difference = after.median - before.median
    percent = difference / abs(before.median) * 100 if before.median else None if difference else 0.0
    return Change(part, before.median, after.median, percent, verdict(before, after, better))


def compare(before: Mapping[str, Measured], after: Mapping[str, Measured]) -> Comparison:
    """The figures of `after` with those of the same name, unit and parts in `before`."""
    changes, problems = dict[Figure, tuple[Change, ...]](), list[str]()
    for name, now in after.items():
        then = before.get(name)
        if then is None:
            problems.append(f"{name} is not in the earlier results")
        elif then.figure.unit != now.figure.unit:
            problems.append(f"{name} was in {then.figure.unit}, and is in {now.figure.unit}")
        else:
            problems += [f"{name} had no part {part}" for part in now.parts.keys() - then.parts.keys()]
            changes[now.figure] = tuple(_changes(then, now))
    single = any(part.ours.runs == 1 for then in before.values() for part in then.parts.values())
    return Comparison({figure: found for figure, found in changes.items() if found}, tuple(problems), single)


def _changes(before: Measured, after: Measured) -> Iterator[Change]:
    better = after.figure.better
    common = {name: (before.parts[name], part) for name, part in after.parts.items() if name in before.parts}
    for name, (then, now) in common.items():
        yield change(name, then.ours, now.ours, better)
    for name, (then, now) in common.items():
        if then.ratio is not None and now.ratio is not None:
            label = RATIO if name == VALUE else f"{RATIO} {name}"
            yield change(label, then.ratio, now.ratio, better)


def read_figures(path: Path) -> dict[str, Measured]:
    """The figures in a file: `build/bench.json` (also in its first format), or `docs/measured.json`.

    The first format and `docs/measured.json` have one number for each part, so the spread is 0. Raises `ResultError`.
    """
    document = read_document(path)
    try:
        if "format" in document:
            found = {one.figure.name: one for result in from_json(document).values() for one in result.figures}
        else:
            entries = document["figures"] if "machine" in document else document
            found = {name: _single(name, entry) for name, entry in entries.items()}
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise ResultError(f"{path} has no results of make bench (format {FORMAT} or older): {reason}") from None
    if not found:
        raise ResultError(f"{path} has no figures")
    return found


def _single(name: str, entry: Mapping[str, Any]) -> Measured:
    value = entry["value"]
    numbers = value if isinstance(value, dict) else {VALUE: value}
    parts = {part: Part(Spread(float(number), float(number), float(number), 1)) for part, number in numbers.items()}
    return Measured(Figure(name, entry["unit"]), parts)
