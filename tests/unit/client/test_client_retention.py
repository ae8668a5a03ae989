"""`sandherd history`: the retention of the history as a user sees it."""

import json
from datetime import UTC, date, datetime

import pytest

from sandherd.cli.options import Format
from sandherd.cli.render.retention import show_release, show_status
from sandherd.contracts.requests import HistoryDay, HistoryHold, HistoryStatus, ProjectDays

DUE = datetime(2026, 11, 20, tzinfo=UTC)
STATUS = HistoryStatus(
    days=90,
    project_days=[ProjectDays(project="web", days=400), ProjectDays(project="lab", days=0)],
    next_drop_at=DUE,
    bytes=3 * 1024**3,
    days_ahead=7,
    partitions=[
        HistoryDay(day=date(2026, 8, 21), events=12, bytes=2 * 1024**3, due_at=DUE, held=True),
        HistoryDay(events=1, bytes=1024**3),
    ],
    holds=[HistoryHold(project="web", task="task-1", reason="case\x1b[31m 7", held_by="ada", held_at=DUE)],
)


def test_status_shows_days_and_holds(capsys: pytest.CaptureFixture[str]) -> None:
    """Each day with its size and its hold, what projects have of their own, and holds without control characters."""
    show_status(STATUS, Format.TABLE)
    shown = capsys.readouterr().out
    lines = shown.splitlines()
    [held] = [line for line in lines if line.startswith("2026-08-21")]
    assert "2 GiB" in held
    assert held.rstrip().endswith("yes")
    assert any(line.startswith("none ") and "1 GiB" in line for line in lines)
    assert "web 400, lab forever" in shown
    assert any(line.startswith("web ") and "task-1" in line and "ada" in line for line in lines)
    assert "\x1b" not in shown


def test_status_of_a_history_that_is_stored_forever(capsys: pytest.CaptureFixture[str]) -> None:
    """0 days are shown as what they mean."""
    show_status(HistoryStatus(days=0), Format.TABLE)
    shown = capsys.readouterr().out
    assert "forever" in shown
    assert "never" in shown


def test_status_is_one_json_document(capsys: pytest.CaptureFixture[str]) -> None:
    """As the reply of the service."""
    show_status(STATUS, Format.JSON)
    found = json.loads(capsys.readouterr().out)
    assert found["partitions"][0]["day"] == "2026-08-21"
    assert found["holds"][0]["task"] == "task-1"


def test_release_without_a_hold_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    """The exit status is 1, and the message names what is not held."""
    assert show_release("web", "task-1", released=False, output=Format.TABLE) == 1
    assert "task task-1 of project web" in capsys.readouterr().err
    assert show_release("web", None, released=True, output=Format.TABLE) == 0
