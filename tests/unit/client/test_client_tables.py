"""Tables and formats: what fits a terminal's width, and names that are never broken."""

from datetime import UTC, datetime, timedelta, timezone

import pytest

from sandherd.cli.commands import doctor, sandboxes, schedules, stack, tasks
from sandherd.cli.exit_status import run_command
from sandherd.cli.options import Format
from sandherd.cli.render import catalogue, console, overview
from sandherd.cli.render.table import Column, cell_width, lines
from sandherd.contracts.names import new_name

TASKS = [
    [
        *(new_name("task"), "completed", "test-python-3.11-debian", "normal", "1/3", new_name("sbx")),
        *("2026-11-20 12:00:00+01:00", "-", new_name("batch"), "Do it " * 30),
    ],
    [
        new_name("task"),
        "pending",
        "-",
        "high",
        "0/3",
        "-",
        "2026-11-20 12:00:00+01:00",
        "the limit of sandboxes",
        "-",
        "日本語" * 40,
    ],
]
NAME, CRON, TIME = new_name("task"), "30 2 * * mon-fri", "2026-11-20 12:00:00+01:00"
QUARANTINED = "/home/somebody/.local/share/sandherd/kept/sbx-01kahc5x3tf8b9n2m4r6v8w0ya.jsonl"
LIMITS = "2048 MB, 2 cores, 3600 s of CPU, 512 processes, 1024 open files"
NARROW: list[tuple[tuple[str | Column, ...], list[str]]] = [
    (
        catalogue.RUNTIMES,
        [
            "process",
            "True",
            "bubblewrap",
            "own",
            "True",
            *["cgroup"] * 3,
            *["file system", "True"],
            "internet",
            "fork",
            "8",
        ],
    ),
    (catalogue.PROFILES, ["python", "kubernetes", "internet", "2", LIMITS]),
    (
        doctor.HEADER,
        [
            "consumer event-ingest-events on EVENTS",
            "warning",
            f"3 kept in {QUARANTINED}",
            f"see `sandherd reread {QUARANTINED}`",
        ],
    ),
    (
        overview.TOP_HEADER,
        [
            *(NAME, "running", "-", "3h 12m", "2m 12s", "123456", "$12.3456"),
            *(f"approve apr-{NAME[5:]}: rm -rf build", "a " * 60),
        ],
    ),
    (
        schedules.HEADER,
        ["nightly-tests-of-the-web", CRON, "Europe/Berlin", "no", TIME, f"started {NAME}", NAME, "a " * 60],
    ),
    (stack.HEADER, ["message-relay", "ready", "1234567", "12", "http://127.0.0.1:44995", "consumer agents: ok " * 4]),
    (schedules.RUN_HEADER, [TIME, "started (triggered)", NAME, "1", f"the task {NAME} has not ended"]),
]
"""Tables that were too wide for 80 columns, each with a row."""
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


def test_tasks_are_recognised_in_80_columns() -> None:
    """By a name of up to 12 letters, and what they wait for, whatever is left out."""
    waiting = [*TASKS[1][:2], "build-docs", *TASKS[1][3:]]
    head, first, second = lines(tasks.HEADER, [TASKS[0], waiting], 80)
    assert {"NAME", "WAITS"} <= set(head.split())
    assert "test-python…" in first or "test-python-3.11" in first
    assert "build-docs" in second
    assert "the limit" in second


@pytest.mark.parametrize("width", [80, 100, 140])
@pytest.mark.parametrize(("header", "row"), NARROW)
def test_no_value_is_cut_in_a_narrow_terminal(header: tuple[str | Column, ...], row: list[str], width: int) -> None:
    """Each column is left out or has its whole value, in its line or below it; only free text is cut."""
    first, *shown = lines(header, [row], width)
    text = " ".join(" ".join(shown).split())
    for column, value in zip([one if isinstance(one, Column) else Column(one) for one in header], row, strict=True):
        if column.below or (column.title in first and not column.cut):
            assert value.strip() in text, column.title
    assert max(map(cell_width, shown)) <= width or QUARANTINED in row[2]


@pytest.mark.parametrize("header", [(Column("TASK"), Column("ERROR", 1, cut=True))])
def test_nothing_is_cut_without_a_terminal(header: tuple[str | Column, ...]) -> None:
    """A pipe or a file gets the whole text of every column."""
    error = "the runtime failed: " + "x " * 100
    assert error.strip() in list(lines(header, [["task-one", error]], None))[1]


def test_facts_are_wrapped_on_a_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Between words, and never in a time or a name; a pipe gets one line for each fact."""
    values = {"running": f"{NAME}, {NAME}", "next": ", ".join([TIME] * 4), "kept": QUARANTINED}
    console.print_facts(values)
    assert len(capsys.readouterr().out.splitlines()) == len(values)
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    console.print_facts(values)
    shown = capsys.readouterr().out.splitlines()
    assert [line[9:] for line in shown] == [f"{NAME},", NAME, *[f"{TIME},"] * 3, TIME, QUARANTINED]


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
    console.print_list(output, {"items": [{"x": "a"}, {"x": "b"}], "next_cursor": None}, ("X",), [["a"], ["b"]])
    assert capsys.readouterr().out == shown


def test_times_have_a_zone() -> None:
    """So that a time can be compared, and given to `--since`."""
    moment = datetime(2026, 11, 20, 12, tzinfo=UTC)
    assert datetime.fromisoformat(console.cell(moment)) == moment


def test_times_in_json_are_those_of_models(capsys: pytest.CaptureFixture[str]) -> None:
    """RFC 3339 in UTC with `Z`, as in every reply of a service, whatever the zone of the value."""
    moment = datetime(2026, 11, 20, 13, tzinfo=timezone(timedelta(hours=1)))
    console.print_document(
        Format.JSONL, {"since": moment, "items": [{"modified_at": moment.replace(microsecond=250_000)}]}
    )
    expected = '{"since":"2026-11-20T12:00:00Z","items":[{"modified_at":"2026-11-20T12:00:00.250000Z"}]}\n'
    assert capsys.readouterr().out == expected


def test_the_version_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    """`--version` shows it and ends."""
    assert run_command(["--version"]) == 0
    assert capsys.readouterr().out.startswith("sandherd 0.")


def test_the_version_is_a_command_too(capsys: pytest.CaptureFixture[str]) -> None:
    """`version` shows what `--version` shows, as `help` does for `--help`."""
    assert run_command(["version"]) == 0
    assert capsys.readouterr().out.startswith("sandherd 0.")


@pytest.mark.parametrize(
    "words", [["-h"], ["help"], ["tasks", "-h"], ["help", "tasks", "list"], ["tasks", "list", "-h"]]
)
def test_help_can_be_requested_in_other_ways(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """`-h` and `help` show what `--help` shows."""
    path = [word for word in words if word not in {"-h", "help"}]
    assert run_command(words) == 0
    shown = capsys.readouterr().out
    assert run_command([*path, "--help"]) == 0
    assert shown == capsys.readouterr().out


def test_costs_are_money_on_a_screen_and_whole_numbers_in_json(capsys: pytest.CaptureFixture[str]) -> None:
    """This includes costs in the result of a task. JSON has the stored millionths of a dollar."""
    console.print_facts({"cost_micro_usd": 1_234_567_890, "result": {"cost_micro_usd": 12_345, "turns": 3}})
    assert capsys.readouterr().out == 'cost    $1,234.5679\nresult  {"cost": "$0.0123", "turns": 3}\n'
    console.print_document(Format.JSONL, {"cost_micro_usd": 12_345})
    assert capsys.readouterr().out == '{"cost_micro_usd":12345}\n'


def test_facts_without_a_value_are_omitted(capsys: pytest.CaptureFixture[str]) -> None:
    """Empty lists and mappings are omitted, too. Numbers and truth values are always shown."""
    console.print_facts(
        {"error": None, "text": "", "depends_on": [], "labels": {}, "secret_env": frozenset(), "turns": 0}
    )
    assert capsys.readouterr().out == "turns  0\n"


def test_truth_values_are_yes_and_no() -> None:
    """In every table and list of facts."""
    assert [console.cell(value) for value in (True, False, 1, 0)] == ["yes", "no", "1", "0"]
