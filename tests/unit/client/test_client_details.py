"""`tasks get` and `sandboxes get` show facts in groups."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from sandherd.cli.commands import sandboxes, tasks
from sandherd.cli.render import console
from sandherd.cli.render.details import sandbox_facts, show, task_facts
from sandherd.cli.render.projects import project_facts
from sandherd.contracts.pull_requests import PullRequestView
from sandherd.contracts.requests import LimitView, ProjectView, SandboxView, TaskView
from sandherd.contracts.states import SandboxState, TaskState

NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)
TASK = TaskView(
    project="alpha",
    task="task-one",
    state=TaskState.PENDING,
    attempt=2,
    text="build it",
    harness="claude",
    runtime="docker",
    sandbox="sbx-one",
    submitted_at=NOON,
    started_at=NOON + timedelta(seconds=1),
    ended_at=NOON + timedelta(seconds=95),
    error="exited with status 3",
    error_type="exit_status",
    result={"exit_code": 3, "cost_micro_usd": 1_500_000},
    priority="high",
    deadline=NOON + timedelta(hours=1),
    depends_on=["task-zero", "task-nil"],
    max_attempts=3,
    not_before=NOON + timedelta(minutes=10),
    repository="https://example.org/a.git",
    branch="sandherd/one",
    waits_for="its next attempt",
    score=12.5,
    profile="python",
    secrets_until=NOON + timedelta(hours=2),
    secret_env=["API_KEY"],
    labels={"team": "web"},
)
SANDBOX = SandboxView(
    project="alpha",
    sandbox="sbx-one",
    state=SandboxState.FAILED,
    task="task-one",
    attempt=2,
    runtime="docker",
    isolation="container",
    requested_at=NOON,
    running_at=NOON + timedelta(seconds=1),
    ended_at=NOON + timedelta(hours=2, minutes=5),
    reason="lost",
    error="no heartbeat",
    events=17,
    last_event_at=NOON + timedelta(seconds=5),
    last_heartbeat_at=NOON + timedelta(seconds=6),
    expires_at=NOON + timedelta(hours=3),
    profile="python",
    warm=True,
)
PENDING = {"attempt": "2 of 3", "reason": "exited with status 3 (exit_status)", "cost": "$0.2500", "took": "1 min 35 s"}


def flat(groups: Any) -> dict[str, object]:
    return {label: value for group in groups for label, value in group.items() if value not in (None, "")}


def test_task_is_shown_with_its_reason_attempts_and_cost() -> None:
    """Labels are words, what belongs together is in one value, and the cost is money."""
    shown = flat(task_facts(TASK, 250_000))
    assert {label: shown[label] for label in PENDING} == PENDING
    assert (shown["next attempt"], shown["depends on"], shown["labels"]) == (
        TASK.not_before,
        "task-zero, task-nil",
        "team=web",
    )
    assert (shown["result: cost"], shown["result: exit code"]) == ("$1.5000", 3)
    ended = flat(task_facts(TASK.model_copy(update={"state": TaskState.FAILED})))
    assert (ended["attempt"], ended["attempt limit"], "next attempt" in ended, "cost" in ended) == (2, 3, False, False)


def test_attempts_of_a_task_that_never_started_are_not_counted() -> None:
    """It has had none: neither while it waits, nor when it was cancelled."""
    unstarted = TASK.model_copy(update={"attempt": 1, "started_at": None, "sandbox": None})
    assert flat(task_facts(unstarted))["attempt"] == "none yet, of at most 3"
    cancelled = unstarted.model_copy(update={"state": TaskState.CANCELLED})
    assert flat(task_facts(cancelled))["attempt"] == "none"
    assert [tasks._row(view)[4] for view in (unstarted, cancelled, TASK)] == ["0/3", 0, "2/3"]


def test_expiry_of_an_ended_sandbox_is_not_listed() -> None:
    """It is not alive until then."""
    running = SANDBOX.model_copy(update={"state": SandboxState.RUNNING, "ended_at": None})
    assert [sandboxes._row(view)[6] for view in (SANDBOX, running)] == [None, SANDBOX.expires_at]


def test_schedules_are_no_users_of_a_project(capsys: pytest.CaptureFixture[str]) -> None:
    """They are shown on a line of their own; the JSON document has both, as the service states them."""
    limit = LimitView(maximum=4, used=1, source="max_tasks")
    view = ProjectView(project="alpha", tasks=limit, sandboxes=limit, users=["ada", "schedule a", "schedule ping"])
    console.print_facts(project_facts(view, {}))
    shown = [line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines()]
    assert ["users", "ada"] in shown
    assert ["schedules", "a, ping"] in shown


def another(value: Any) -> Any:
    """A value of the same kind."""
    changes = {list: ["other"], dict: {"other": "1"}, datetime: NOON + timedelta(hours=5), bool: False}
    if value is None:
        return PullRequestView(number=1, url="https://example.org/pull/1")
    return value + 1 if type(value) in {int, float} else changes.get(type(value), "other")


@pytest.mark.parametrize(
    ("view", "other", "find"),
    [
        (TASK, {"state": TaskState.RUNNING}, task_facts),
        (SANDBOX, {"ended_at": None}, sandbox_facts),
    ],
    ids=["task", "sandbox"],
)
def test_each_field_is_shown(view: Any, other: dict[str, Any], find: Any) -> None:
    """A field that is added later is missing here until a group has it."""
    shown = [find(view), find(view.model_copy(update=other))]
    for field in type(view).model_fields:
        changed = view.model_copy(update={field: another(getattr(view, field))})
        assert [find(changed), find(changed.model_copy(update=other))] != shown, field


def test_names_in_a_result_are_text_of_a_sandbox() -> None:
    """They are on one line, short and without control characters."""
    hostile = TASK.model_copy(update={"result": {"\x1b[2Jx\nstate" + "y" * 99: 1}})
    [label] = task_facts(hostile)[-1]
    assert (len(label) < 40, "\x1b" in label, "\n" in label) == (True, False, False)


def test_groups_are_separated_and_aligned(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Times have a zone, raw field names are not shown, and an empty group leaves no empty line."""
    monkeypatch.setenv("TZ", "UTC")
    show(task_facts(TASK.model_copy(update={"result": {}}), 250_000))
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["task", "task-one"]
    assert (lines.count(""), lines[-1] != "") == (3, True)
    columns = {line.index(value) for line in lines for value in ("alpha", "build it", "high") if value in line}
    assert len(columns) == 1
    [submitted] = [line for line in lines if line.startswith("submitted ")]
    assert submitted.endswith("+00:00")
    assert not any("_at " in line or "_micro_usd" in line for line in lines)
