"""The screens of `top` and `--watch`, and the words of others."""

import os
import pty
from datetime import UTC, datetime

import pytest

from sandherd.cli.commands.backup import _restored_rows
from sandherd.cli.commands.schedules import _show as show_schedule
from sandherd.cli.commands.stack import _warnings
from sandherd.cli.options import Format
from sandherd.cli.render.budgets import amount_in_table, rows
from sandherd.cli.render.list_watch import show_screen
from sandherd.cli.render.overview import show_costs
from sandherd.cli.render.projects import _row as project_row
from sandherd.cli.render.statistics import show_statistics
from sandherd.cli.service_logs import _record
from sandherd.contracts.budgets import BudgetKind
from sandherd.contracts.events.agent import AgentFailed, AgentStarted
from sandherd.contracts.requests import (
    BudgetLine,
    GroupStatistics,
    ProjectView,
    ScheduleView,
    Statistics,
    StatisticsList,
    Usage,
    UsageList,
)

NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)


def test_screen_leaves_what_was_scrolled_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is shown in place of what the terminal shows; the lines above it are not erased (ESC[3J)."""
    controller, place = pty.openpty()
    with os.fdopen(place, "w", encoding="utf-8") as stream, monkeypatch.context() as patched:
        patched.setattr("sys.stdout", stream)
        show_screen("title", ["NAME"], [["last"]], wide=False)
        shown = ""
        while "last" not in shown:
            shown += os.read(controller, 65536).decode()
    os.close(controller)
    assert "\x1b[2J" in shown
    assert "\x1b[3J" not in shown


def test_absent_usage_has_one_word(capsys: pytest.CaptureFixture[str]) -> None:
    """`costs`, `stats`, `budgets list` and `projects list` say `unmetered` of what no agent has reported."""
    show_costs(UsageList(groups=[], group_count=0, total=Usage()), "task", Format.TABLE)
    assert capsys.readouterr().out == "unmetered\n"
    none = GroupStatistics(group="task-one", turns=1, tool_calls=1)
    show_statistics(StatisticsList(groups=[none], group_count=1, total=Statistics(turns=1)), "task", Format.TABLE)
    assert [line.split()[:2] for line in capsys.readouterr().out.splitlines()[1:]] == [
        ["task-one", "unmetered"],
        ["total", "unmetered"],
    ]
    assert "unmetered" in rows([BudgetLine(scope="task", task="task-one", budget="tokens", metered=False)])[0]
    limit = {"used": 0, "maximum": 8, "source": "project"}
    view = ProjectView.model_validate({"project": "web", "tasks": limit, "sandboxes": limit, "pending": 0})
    assert "unmetered" in project_row(view, {})
    assert "unmetered" not in project_row(view, None)  # without a history it is not known


@pytest.mark.parametrize(
    ("kind", "amount", "shown"),
    [
        ("tokens", 900_000_000, "900m tokens"),
        ("tokens", 123_456_789, "123.5m tokens"),
        ("tokens", 9_999, "9999 tokens"),
        ("tokens", 1, "1 token"),
        ("tokens", 2_500_000_000_000, "2,500b tokens"),
        ("turns", 1, "1 turn"),
        ("turns", 50, "50 turns"),
        ("wall_time", 0, "0s"),
        ("wall_time", 210, "3m 30s"),
        ("wall_time", 3600, "1h"),
        ("wall_time", 120, "2m"),
        ("cost", 2_000_000, "2.00 USD"),
    ],
)
def test_amounts_of_budgets_are_as_one_types_them(kind: BudgetKind, amount: int, shown: str) -> None:
    """With the unit, singular for one, and a time in its two largest units."""
    assert amount_in_table(kind, amount) == shown


def test_status_shows_what_is_not_ok() -> None:
    """It shows the lines of a part's report that are not ok, separated; nothing for a part without a problem."""
    assert _warnings("storage: ok\nrecords: ok\n") == ""
    assert _warnings("storage: ok\nbroker: away\nwatch: look: slow") == "broker: away; watch: look: slow"
    assert _warnings("not running") == "not running"


def test_restored_streams_without_messages_are_named_alike() -> None:
    """`empty`, unless the broker had the stream already; JSON has the states as they are."""
    done = [("EVENTS", "5 messages"), ("DEAD", "0 messages"), ("KV_tokens", "as it was")]
    assert [state for _, state in _restored_rows(done)] == ["5 messages", "empty", "as it was"]


def test_start_of_a_sandbox_without_a_task_says_so() -> None:
    """In a list of events and in a timeline: there is neither a harness nor a text to show."""
    data = {"timestamp": NOON, "sdk": "none", "task": "", "task_description_length": 0}
    assert AgentStarted.model_validate(data).summarize() == "a sandbox without a task"


def test_facts_about_a_failure_are_not_part_of_its_remedy() -> None:
    """The error may end with a remedy; how long it took is in parentheses."""
    error = "acp is not installed; install it with `sandherd harness install acp`"
    failed = AgentFailed(error=error, error_type="start", duration_seconds=0.25, files_changed=1)
    assert failed.summarize() == f"{error} (0.2 s, 1 file changed)"
    assert AgentFailed(error=error, error_type="start").summarize() == error


def test_line_of_a_log_that_is_json_is_a_record() -> None:
    """Beside its text; a line of the broker or the database is only text."""
    assert _record('{"event": "ready", "level": "info"}') == {"record": {"event": "ready", "level": "info"}}
    assert _record("[1] 2026/11/20 [INF] Server is ready") == _record("[1]") == {}


def test_schedule_is_shown_restored_rows(capsys: pytest.CaptureFixture[str]) -> None:
    """Labels without underscores, durations with a unit, and all values in one column."""
    view = ScheduleView(
        project="web", name="nightly", cron="0 3 * * *", time_zone="UTC", overlap="skip", catch_up_seconds=300,
        text="Ping", created_at=NOON, updated_at=NOON, next_times=[NOON],
    )  # fmt: skip
    show_schedule(view, wide=False)
    shown = capsys.readouterr().out.partition("\n\n")[0].splitlines()
    assert "catch up    within 5m of the due time" in shown
    assert {line[10:12] for line in shown} == {"  "}
    assert not any("_" in line.partition("  ")[0] for line in shown)
