"""`sandherd history`: the retention of the history as a user sees it."""

import json
from datetime import UTC, date, datetime

import pytest

from sandherd.cli.options import Format
from sandherd.cli.render.retention import show_archives, show_release, show_restore, show_status
from sandherd.contracts.requests import (
    ArchivedEvents,
    ArchiveProblem,
    HistoryDay,
    HistoryHold,
    HistoryRestore,
    HistoryStatus,
    ProjectDays,
    TypeDays,
)

DUE = datetime(2026, 11, 20, tzinfo=UTC)
STATUS = HistoryStatus(
    days=90,
    project_days=[ProjectDays(project="web", days=400), ProjectDays(project="lab", days=0)],
    type_days=[TypeDays(type="agent.heartbeat", days=1)],
    task_days=400,
    next_drop_at=DUE,
    next_reduction_at=DUE,
    bytes=3 * 1024**3,
    days_ahead=7,
    partitions=[
        HistoryDay(day=date(2026, 8, 21), events=12, bytes=2 * 1024**3, due_at=DUE, held=True, removed=4711),
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
    assert held.split()[-3:] == ["yes", "4711", "-"]
    assert "agent.heartbeat 1" in shown
    assert "400 days" in shown
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
    """The document is the reply of the service."""
    show_status(STATUS, Format.JSON)
    found = json.loads(capsys.readouterr().out)
    assert found["partitions"][0]["day"] == "2026-08-21"
    assert found["holds"][0]["task"] == "task-1"


def test_release_without_a_hold_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    """The exit status is 1, and the message names what is not held."""
    assert show_release("web", "task-1", released=False, output=Format.TABLE) == 1
    assert "task task-1 of project web" in capsys.readouterr().err
    assert show_release("web", None, released=True, output=Format.TABLE) == 0


RESTORE = HistoryRestore(day=date(2026, 8, 21), until=DUE, requested_at=DUE, events=12, problem="no\x1b[31m file")


def test_status_shows_the_archive_and_its_problems(capsys: pytest.CaptureFixture[str]) -> None:
    """Where days are archived, which are not and why, and what was restored; texts without control characters."""
    problem = ArchiveProblem(day=date(2026, 8, 21), problem="no space\x1b[31m", since=DUE)
    update = {"archive": "/srv/archive", "archive_problems": [problem], "restores": [RESTORE]}
    show_status(STATUS.model_copy(update=update), Format.TABLE)
    shown = capsys.readouterr().out
    assert "/srv/archive" in shown
    assert "no space" in shown
    assert any("all" in line and "file" in line for line in shown.splitlines() if line.startswith("2026-08-21"))
    assert "\x1b" not in shown
    show_status(STATUS, Format.TABLE)
    assert "dropped events are deleted" in capsys.readouterr().out


def test_archives_are_listed_by_day_and_project(capsys: pytest.CaptureFixture[str]) -> None:
    """With their sizes."""
    one = ArchivedEvents(day=date(2026, 8, 21), project="web", events=12, bytes=1024**3, files=2, archived_at=DUE)
    show_archives([one], Format.TABLE)
    [line] = [line for line in capsys.readouterr().out.splitlines() if line.startswith("2026-08-21")]
    assert "web" in line
    assert "1 GiB" in line


def test_restore_that_failed_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    """The exit status is 1, and the message states why; a JSON document has it, too."""
    assert show_restore(RESTORE, Format.TABLE) == 1
    err = capsys.readouterr().err
    assert "2026-08-21 is not restored" in err
    assert "\x1b" not in err
    assert show_restore(RESTORE, Format.JSON) == 1
    assert json.loads(capsys.readouterr().out)["day"] == "2026-08-21"
    assert show_restore(RESTORE.model_copy(update={"problem": None, "done_at": DUE}), Format.TABLE) == 0
