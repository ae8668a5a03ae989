"""Tables and formats: what fits a terminal's width, and names that are never broken."""

from datetime import UTC, datetime

import pytest

from sandherd.cli.commands import sandboxes, tasks
from sandherd.cli.exit_status import status_of
from sandherd.cli.options import Format
from sandherd.cli.render import console
from sandherd.cli.render.table import Column, cell_width, lines
from sandherd.contracts.names import new_name

TASKS = [
    [new_name("task"), "completed", "normal", "1/3", new_name("sbx"), "2026-11-20 12:00:00+01:00", "-", "Do it " * 30],
    [
        new_name("task"),
        "pending",
        "high",
        "0/3",
        "-",
        "2026-11-20 12:00:00+01:00",
        "the limit of sandboxes",
        "日本語" * 40,
    ],
]
SANDBOXES = [
    [new_name("sbx"), "running", new_name("task"), "process", "-", "2026-11-20 12:00:00+01:00", "-", "a " * 60]
]


@pytest.mark.parametrize("width", range(70, 260, 5))
@pytest.mark.parametrize(("header", "rows"), [(tasks.HEADER, TASKS), (sandboxes.HEADER, SANDBOXES)])
def test_a_list_fits_the_terminal_with_whole_names(
    header: tuple[str | Column, ...], rows: list[list[str]], width: int
) -> None:
    """From 70 columns on: one line for each item, no wider than the terminal, with its whole name and state."""
    shown = list(lines(header, rows, width))
    assert max(map(cell_width, shown)) <= width
    assert [line.split()[:2] for line in shown[1:]] == [row[:2] for row in rows]


def test_all_columns_are_shown_where_there_is_room_and_with_wide() -> None:
    """In a wide terminal nothing is left out; with `wide` no cell is cut, whatever the width."""
    titles = [one if isinstance(one, str) else one.title for one in tasks.HEADER]
    assert all(title in next(iter(lines(tasks.HEADER, TASKS, 220))) for title in titles)
    head, first, _ = lines(tasks.HEADER, TASKS, 80, wide=True)
    assert all(title in head for title in titles)
    assert TASKS[0][-1].strip() in first


def test_a_name_is_not_broken_in_a_narrow_terminal() -> None:
    """Where not even the columns that are always shown fit, lines are longer than the terminal."""
    name = new_name("task")
    assert any(name in line for line in lines(("TASK", "WHAT"), [[name, "https://example.org/" + "x" * 90]], 20))


def test_text_is_wrapped_at_spaces_and_addresses_anywhere() -> None:
    """Nothing of a cell is lost in a table that is wrapped."""
    text = "check https://example.org/" + "x" * 60 + " and try again"
    shown = "".join(line.removeprefix("A".ljust(3)) for line in list(lines(("A", "REMEDY"), [["1", text]], 40))[1:])
    assert "".join(shown.split()).removeprefix("1") == "".join(text.split())


@pytest.mark.parametrize(
    ("output", "shown"),
    [(Format.NAME, "a\nb\n"), (Format.JSONL, '{"x":"a"}\n{"x":"b"}\n'), (Format.TABLE, "X\na\nb\n")],
)
def test_a_list_in_each_format(output: Format, shown: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Only the names, one JSON document for each item, or a table."""
    console.answer(output, {"items": [{"x": "a"}, {"x": "b"}], "next_cursor": None}, ("X",), [["a"], ["b"]])
    assert capsys.readouterr().out == shown


def test_times_have_a_zone() -> None:
    """So that a time can be compared, and given to `--since`."""
    moment = datetime(2026, 11, 20, 12, tzinfo=UTC)
    assert datetime.fromisoformat(console.cell(moment)) == moment


def test_the_version_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    """`--version` shows it and ends."""
    assert status_of(["--version"]) == 0
    assert capsys.readouterr().out.startswith("sandherd 0.")


@pytest.mark.parametrize(
    "words", [["-h"], ["help"], ["tasks", "-h"], ["help", "tasks", "list"], ["tasks", "list", "-h"]]
)
def test_help_can_be_asked_for_in_other_ways(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """`-h` and `help` show what `--help` shows."""
    path = [word for word in words if word not in {"-h", "help"}]
    assert status_of(words) == 0
    shown = capsys.readouterr().out
    assert status_of([*path, "--help"]) == 0
    assert shown == capsys.readouterr().out


def test_costs_are_money_on_a_screen_and_whole_numbers_in_json(capsys: pytest.CaptureFixture[str]) -> None:
    """Also within the result of a task; JSON has the millionths of a dollar that are stored."""
    console.facts({"cost_micro_usd": 1_234_567_890, "result": {"cost_micro_usd": 12_345, "turns": 3}})
    assert capsys.readouterr().out == 'cost    $1,234.5679\nresult  {"cost": "$0.0123", "turns": 3}\n'
    console.document(Format.JSONL, {"cost_micro_usd": 12_345})
    assert capsys.readouterr().out == '{"cost_micro_usd":12345}\n'


def test_truth_values_are_yes_and_no() -> None:
    """In every table and list of facts."""
    assert [console.cell(value) for value in (True, False, 1, 0)] == ["yes", "no", "1", "0"]
