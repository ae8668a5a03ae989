"""Tables: no line is wider than 80 columns, and no digit is cut off."""

from collections.abc import Iterable
from datetime import UTC, datetime

import pytest
from rich.cells import cell_len
from rich.text import Text

from tests.bench.catalog import GROUPS, Group
from tests.bench.comparison import Change, Comparison, compare
from tests.bench.figures import Figure, Sample, summarize
from tests.bench.results import GroupResult
from tests.bench.tables import WIDTH, comparison_lines, duration, group_lines, number, result_lines

LONG = Figure("a_group_with_a_long_name." + "and_a_figure_with_a_longer_name" * 4, "events/s of a kind " * 6, "higher")
NUMBERS = [0.0, 1e-12, -1.234567e-9, 0.12345, 9.99999, 999.96, 12345.678, 9_999_999.4, 1.23456e7, 1e300, -7e120]


def widest(lines: Iterable[Text]) -> int:
    return max(cell_len(line.plain) for line in lines)


@pytest.mark.parametrize("value", NUMBERS)
def test_number_has_eight_characters_at_most_and_its_magnitude(value: float) -> None:
    """Two digits are right in any case."""
    assert len(number(value)) <= 8
    assert float(number(value)) == pytest.approx(value, rel=0.05)


def test_numbers_and_times_are_readable() -> None:
    """Four digits, and whole numbers from 1,000."""
    assert [number(one) for one in (None, 0.12345, 1.5, 16934.4, 1e9)] == ["-", "0.1235", "1.5", "16934", "1e+09"]
    assert [duration(one) for one in (0.4, 59.4, 200, 3900)] == ["0 s", "59 s", "3 min 20 s", "1 h 5 min"]


@pytest.mark.parametrize("figure", [LONG, Figure("a.b", "ms")])
@pytest.mark.parametrize("part", ["value", "p99", "a part with a long name " * 5, "x" * 200])
def test_results_and_comparisons_fit_the_width(figure: Figure, part: str) -> None:
    """Long names and large numbers fit too."""
    after = summarize(figure, [Sample({part: one}, {part: 3.3e-7}) for one in NUMBERS])
    before = summarize(figure, [Sample({part: one * 1e9}, {part: 7.7}) for one in NUMBERS])
    result = GroupResult(
        group="group" * 30, measured_at=datetime.now(UTC), commit="f" * 40, machine={}, seconds=1e6, runs=11,
        figures=[after],
    )  # fmt: skip
    assert widest(result_lines([result])) <= WIDTH
    comparison = compare({figure.name: before}, {figure.name: after, "gone" * 50: after})
    assert comparison.changes
    assert widest(comparison_lines(comparison)) <= WIDTH


def test_large_change_fits_the_width() -> None:
    """Both a percentage and a change from 0 fit."""
    changes = tuple(Change("p99", 0, 1, percent, "within spread") for percent in (None, 0.04, -99.96, 123456.7, 1e200))
    lines = list(comparison_lines(Comparison({LONG: changes}, ("a problem " * 40,))))
    assert widest(lines) <= WIDTH
    assert any("+1e+05 %" in line.plain for line in lines)


def test_list_of_groups_fits_and_names_every_figure() -> None:
    """A group with long names fits too."""
    lines = list(group_lines([*GROUPS, Group("long" * 30, "summary " * 20, "", (LONG,))]))
    assert widest(lines) <= WIDTH
    text = " ".join(line.plain for line in lines)
    assert all(figure.name in text for group in GROUPS for figure in group.figures)
