"""Selection, statistics, verdicts, estimates and the file of results: all without measuring anything."""

import json
import runpy
import stat
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.bench.catalog import GROUPS, UnknownGroupError, select
from tests.bench.comparison import change, compare, read_figures, verdict
from tests.bench.figures import Figure, Measured, Sample, Spread, spread, summarize
from tests.bench.options import ROOT
from tests.bench.progress import Step, live_line, remaining
from tests.bench.results import FORMAT, GroupResult, ResultError, load, store, to_json

RATE = Figure("ingest.throughput", "events/s", "higher")
LATENCY = Figure("ingest.latency", "ms")


def rates(*numbers: float, baseline: float = 100.0, figure: Figure = RATE) -> Measured:
    return summarize(figure, [Sample({"value": number}, {"value": baseline}) for number in numbers])


def result(*figures: Measured, group: str = "ingest") -> GroupResult:
    return GroupResult(
        group=group, measured_at=datetime(2026, 11, 23, 12, tzinfo=UTC), commit="abc", machine={"cores": 2},
        seconds=12.5, runs=3, figures=figures,
    )  # fmt: skip


# --- selection


def test_groups_are_selected_by_name_in_their_own_order() -> None:
    """Spaces do not matter, and without names all are selected."""
    assert [group.name for group in select("worker, ingest", GROUPS)] == ["ingest", "worker"]
    assert select(None, GROUPS) == list(GROUPS)


@pytest.mark.parametrize("only", ["ingest,nosuch", "", ",", "ingest.throughput"])
def test_unknown_group_is_an_error_that_lists_the_groups(only: str) -> None:
    """A selection without names is one too."""
    with pytest.raises(UnknownGroupError) as caught:
        select(only, GROUPS)
    assert all(group.name in str(caught.value) for group in GROUPS)


def test_every_figure_belongs_to_one_group_with_three_runs() -> None:
    """Three is the minimum also if fewer are requested."""
    names = [figure.name for group in GROUPS for figure in group.figures]
    assert len(names) == len(set(names))
    assert len({group.name for group in GROUPS}) == len(GROUPS)
    assert min(group.runs(1) for group in GROUPS) == 3


# --- statistics


def test_the_ratio_is_the_median_of_the_ratios_of_the_runs() -> None:
    """Not the ratio of the medians: each run is compared with the baseline of the same run."""
    samples = [Sample({"value": ours}, {"value": base}) for ours, base in ((10, 1), (20, 4), (30, 10))]
    part = summarize(RATE, samples).parts["value"]
    assert part.ours == Spread(20, 10, 30, 3)
    assert part.baseline == Spread(4, 1, 10, 3)
    assert part.ratio == Spread(5, 3, 10, 3)


def test_each_part_has_a_ratio_to_the_same_part_or_to_the_only_one() -> None:
    """Without a baseline, or beside one of 0 in any run, there is none."""
    assert Sample({"p50": 4.0, "p99": 9.0}, {"p50": 2.0, "p99": 3.0}).ratios() == {"p50": 2.0, "p99": 3.0}
    assert Sample({"now": 4.0, "peak": 6.0}, {"value": 2.0}).ratios() == {"now": 2.0, "peak": 3.0}
    assert Sample({"value": 4.0}, {"value": 0.0}).ratios() == {}
    part = summarize(RATE, [Sample({"value": 4.0}, {})] * 3).parts["value"]
    assert part.baseline is None
    assert part.ratio is None
    part = summarize(RATE, [Sample({"value": 4.0}, {"value": base}) for base in (0.0, 1.0, 2.0)]).parts["value"]
    assert part.baseline == Spread(1, 0, 2, 3)
    assert part.ratio is None


def test_fewer_than_three_runs_or_different_parts_are_an_error() -> None:
    """A figure whose runs can't be summarized is not stored."""
    with pytest.raises(ValueError, match="has 2 of at least 3 runs"):
        summarize(RATE, [Sample({"value": 1.0}, {})] * 2)
    with pytest.raises(ValueError, match="different parts"):
        summarize(RATE, [*[Sample({"value": 1.0}, {})] * 2, Sample({"p50": 1.0}, {})])


# --- comparison


@pytest.mark.parametrize(
    ("before", "after", "higher", "lower"),
    [
        ((10, 11, 12), (20, 21, 22), "better", "worse"),
        ((20, 21, 22), (10, 11, 12), "worse", "better"),
        ((10, 11, 12), (11, 12, 13), "within spread", "within spread"),
        ((10, 11, 12), (10, 30, 60), "within spread", "within spread"),  # the spread after is wide
        ((10, 30, 60), (61, 62, 63), "within spread", "within spread"),  # the spread before is wide
        ((10, 10, 10), (10, 10, 10), "within spread", "within spread"),
        ((10, 10, 10), (11, 11, 11), "better", "worse"),
    ],
)
def test_change_counts_if_it_exceeds_both_spreads(
    before: tuple[float, ...], after: tuple[float, ...], higher: str, lower: str
) -> None:
    """The direction is the figure's."""
    assert verdict(spread(before), spread(after), "higher") == higher
    assert verdict(spread(before), spread(after), "lower") == lower


def test_a_change_is_in_percent_of_the_earlier_median() -> None:
    """There is none from 0 to another number."""
    assert change("value", spread([200]), spread([150]), "lower").percent == -25
    assert change("value", spread([0]), spread([1]), "lower").percent is None
    assert change("value", spread([0]), spread([0]), "lower").percent == 0


def test_values_and_ratios_are_compared() -> None:
    """A slower machine changes both sides of a ratio, and so not the ratio."""
    before, after = rates(1000, 1001, 1002), rates(500, 501, 502, baseline=50)
    found = compare({"ingest.throughput": before}, {"ingest.throughput": after})
    assert [(one.part, one.verdict) for one in found.changes[RATE]] == [("value", "worse"), ("ratio", "within spread")]
    assert [one.part for _, one in found.worse_by(10)] == ["value"]
    assert found.worse_by(60) == []


def test_incomparable_figures_are_reported() -> None:
    """A missing figure, one with another unit, and a missing part are reported."""
    parts = [Sample({"p50": 1.0, "p99": 2.0}, {})] * 3
    after = {"a": rates(1, 2, 3), "b": rates(1, 2, 3), "c": summarize(LATENCY, parts)}
    before = {"b": rates(1, 2, 3, figure=Figure("b", "s")), "c": summarize(LATENCY, [Sample({"p50": 1.0}, {})] * 3)}
    found = compare(before, after)
    assert [one.part for one in found.changes[LATENCY]] == ["p50"]
    assert found.problems == (
        "a is not in the earlier results", "b was in s, and is in events/s", "c had no part p99"
    )  # fmt: skip


def test_older_files_are_read_too(tmp_path: Path) -> None:
    """The first format of `build/bench.json`, and `docs/measured.json`: one number for each part."""
    entry = {"value": {"p50": 1.5, "p99": 2}, "unit": "ms", "baseline": {"p50": 1, "p99": 1}, "ratio": 2}
    (tmp_path / "first.json").write_text(json.dumps({"ingest.latency": entry}))
    (tmp_path / "docs.json").write_text(json.dumps({"machine": {}, "figures": {"ingest.latency": entry}}))
    for name in ("first.json", "docs.json"):
        found = read_figures(tmp_path / name)["ingest.latency"]
        assert found.figure.unit == "ms"
        assert found.parts["p99"].ours == Spread(2, 2, 2, 1)
        assert compare({"ingest.latency": found}, {}).single
    assert not compare({"ingest.throughput": rates(1, 2, 3)}, {}).single


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"a": 1}', '{"format": 3, "groups": {}}', '{"format": 2}'])
def test_file_without_results_is_an_error_that_names_it(tmp_path: Path, text: str) -> None:
    """Any fault of the file is reported so."""
    (tmp_path / "old.json").write_text(text)
    with pytest.raises(ResultError, match=r"old\.json"):
        read_figures(tmp_path / "old.json")
    with pytest.raises(ResultError, match=r"gone\.json"):
        read_figures(tmp_path / "gone.json")


# --- the file


def test_results_are_read_as_they_were_stored(tmp_path: Path) -> None:
    """With all samples; the entries of other groups stay as they were, and no other file is left."""
    path = tmp_path / "build" / "bench.json"
    worker, first, second = result(rates(1, 2, 3), group="worker"), result(rates(1, 2, 3)), result(rates(4, 5, 6, 7))
    for one in (worker, first, second):
        store(path, one)
    found = load(path)
    assert list(found) == ["worker", "ingest"]
    assert (found["worker"].figures[0], found["ingest"].figures[0]) == (rates(1, 2, 3), rates(4, 5, 6, 7))
    assert found["ingest"].measured_at == second.measured_at
    assert [file.name for file in path.parent.iterdir()] == ["bench.json"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert json.loads(path.read_text())["format"] == FORMAT
    assert read_figures(path).keys() == {"ingest.throughput"}


def test_results_of_the_first_format_are_replaced(tmp_path: Path) -> None:
    """They name no groups; a file that can't be read is an error, and stays."""
    path = tmp_path / "bench.json"
    path.write_text('{"ingest.latency": {"value": 1, "unit": "ms"}}')
    store(path, result(rates(1, 2, 3)))
    assert load(path).keys() == {"ingest"}
    path.write_text('{"format": 2')
    with pytest.raises(ResultError):
        store(path, result(rates(1, 2, 3)))
    assert path.read_text() == '{"format": 2'


def test_sizing_page_gets_the_medians_and_their_dates() -> None:
    """A figure that was not measured now is unchanged; one that the page does not show is left out.

    Of some the ratio to the baseline is shown.
    """
    updated = runpy.run_path(str(ROOT / "docs" / "measured.py"))["updated"]
    idle = summarize(Figure("idle.nats", "MiB"), [Sample({"MiB": 25.912}, {})] * 3)
    space_figure = {"value": {"postgres": 975}, "unit": "bytes/event", "on": "2026-11-21"}
    cost = summarize(Figure("monitor.cost", "µs/event"), [Sample({"value": 55}, {"value": 50})] * 3)
    results = to_json({"ingest": result(rates(1600.4, 1700.4, 1800.4), idle, cost, rates(1, 2, 3, figure=LATENCY))})
    found = updated({"machine": {}, "figures": {"room.event": space_figure}}, results["groups"])
    assert found["machine"] == {"cores": 2}
    assert found["figures"] == {
        "idle.nats": {"value": {"MiB": 25.91}, "unit": "MiB", "on": "2026-11-23"},
        "ingest.throughput": {"value": 1700, "unit": "events/s", "on": "2026-11-23"},
        "monitor.cost": {"value": 1.1, "unit": "1", "on": "2026-11-23"},
        "room.event": space_figure,
    }


# --- the estimate


def test_remaining_time_is_estimated_from_earlier_results() -> None:
    """An unknown group takes the mean of the known ones; without any there is no estimate."""
    half = Step("a.figure", 2, 4, results=2, expected=4)
    assert remaining(10, Step(), "a", ["b"], {}) is None
    assert remaining(10, half, "a", ["b"], {}) == 10 + 20
    assert remaining(10, half, "a", ["b"], {"a": 15, "b": 40}) == 5 + 40
    assert remaining(10, Step(), "a", ["b"], {"b": 40}) == 30 + 40
    assert remaining(99, half, "a", [], {"a": 15}) == 0
    assert live_line("a", half, 10, 30) == "a  a.figure  run 2 of 4  10 s  about 30 s left"
    assert live_line("a", Step(), 10, None) == "a  starting  10 s"
