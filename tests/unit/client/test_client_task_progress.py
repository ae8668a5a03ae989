"""Labels, the progress of several tasks, the rows of `top`, and the orders of lists, as pure functions."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from sandherd.cli.parse.labels import cost_group, new_labels, required_labels, selector
from sandherd.cli.render.durations import span
from sandherd.cli.render.overview import work_row
from sandherd.client import HerdError
from sandherd.client.tasks.batch import order_tasks, with_labels
from sandherd.client.tasks.overview import diagnoses_of, work_views
from sandherd.client.tasks.progress import TaskProgress, all_completed
from sandherd.contracts.envelope import Envelope, wrap
from sandherd.contracts.events import EventData
from sandherd.contracts.events.task import TaskCompleted, TaskFailed, TaskRetryScheduled, TaskSubmitted
from sandherd.contracts.harnesses import CommandHarness
from sandherd.contracts.labels import BATCH_LABEL
from sandherd.contracts.requests import GroupUsage, ListLiveSandboxes, ListLiveTasks, SandboxView, TaskView
from sandherd.contracts.specs import TaskSpec
from sandherd.contracts.states import SandboxState, TaskState
from spawner.tasks.live_queries import is_wanted_sandbox, is_wanted_task, task_position

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)


def view(task: str, state: TaskState = TaskState.RUNNING, **more: Any) -> TaskView:
    return TaskView(project="p", task=task, state=state, submitted_at=NOW, **more)


def event(task: str, data: EventData) -> Envelope[Any]:
    return wrap(data, data.type, source="/sandherd/spawner/x", sequence=1, project="p", subject=task, time=NOW)


def test_progress_follows_retries_to_the_end() -> None:
    """A failed task that is retried has not ended; all are over only at the last end, whatever came before."""
    progress = TaskProgress({"a": None, "b": None})
    for data in (
        TaskSubmitted(task="x", harness="command", runtime="process"),
        TaskFailed(error="e", error_type="start"),
    ):
        progress.apply(event("a", data))
    assert (progress.ended, progress.is_accepted) == (1, False)
    progress.apply(event("a", TaskRetryScheduled(not_before=NOW, error="e")))
    assert progress.ended == 0
    for task in ("a", "b", "c"):
        progress.apply(event(task, TaskCompleted(sandbox="sbx-1", attempt=2)))
    assert progress.is_over
    assert all_completed(progress.outcomes)
    assert progress.summarize() == "2 of 2 ended: 2 completed"


@pytest.mark.parametrize("label", ["team", "-a=b", "a=-b", "a b=c", "a=" + "b" * 64, "sandherd/batch=x", "A.b/c=d"])
def test_invalid_label_is_refused(label: str) -> None:
    """Labels that Kubernetes would refuse, and reserved labels, are refused."""
    with pytest.raises(HerdError, match="label"):
        new_labels([label])


def test_selection_is_either_by_name_or_by_label() -> None:
    """A valid label selects; both ways at once, or none, is an error; a label may have one value."""
    assert selector(["a.example/team=web", "empty="], "batch-1")[BATCH_LABEL] == "batch-1"
    for names, labels in (([], []), (["task-1"], ["a=b"]), ([], ["a=b", "a=c"])):
        with pytest.raises(HerdError):
            required_labels(names, labels, None)
    assert cost_group("label:team", ["task"]) == ("label", "team")
    with pytest.raises(HerdError, match="is not a group"):
        cost_group("label", ["task"])


def test_tasks_of_a_file_have_one_batch() -> None:
    """All have it; with given task names it is the same the next time; a task's own label has precedence."""
    entry = {"name": "a", "text": "a", "argv": ["true"], "labels": {"team": "web"}}
    fresh = [order_tasks([entry, {**entry, "name": "b c"}]) for _ in range(2)]
    assert len({task.batch for tasks in fresh for task in tasks}) == 2
    given = [order_tasks([{**entry, "task": "task-mine"}])[0] for _ in range(2)]
    assert given[0].spec == given[1].spec
    [more] = with_labels([given[0]], {"team": "data", "night": "1"})
    assert (more.spec.labels["team"], more.spec.labels["night"]) == ("web", "1")
    with pytest.raises(HerdError, match="reserved"):
        order_tasks([{**entry, "labels": {"sandherd/batch": "x"}}])


def test_worker_does_not_get_labels() -> None:
    """A worker of an earlier version refuses unknown fields."""
    spec = TaskSpec(text="x", harness=CommandHarness(argv=["a"]), labels={"team": "web"})
    assert "labels" not in spec.to_json()


def test_live_lists_are_filtered_and_sorted() -> None:
    """States are alternatives, all labels are needed, and each order has its position."""
    task = view("task-1", labels={"team": "web"})
    assert is_wanted_task(
        task, ListLiveTasks(states=[TaskState.PENDING, TaskState.RUNNING], labels={"team": "web"}, since=NOW)
    )
    assert not is_wanted_task(task, ListLiveTasks(labels={"team": "web", "night": "1"}))
    assert not is_wanted_task(task, ListLiveTasks(since=NOW + timedelta(seconds=1)))
    sandbox = SandboxView(project="p", sandbox="sbx-1", state=SandboxState.RUNNING, runtime="process", requested_at=NOW)
    assert is_wanted_sandbox(
        sandbox, {"team": "web"}, ListLiveSandboxes(states=[SandboxState.RUNNING], labels={"team": "web"})
    )
    assert not is_wanted_sandbox(sandbox, {}, ListLiveSandboxes(labels={"team": "web"}))
    assert [task_position(sort, task)[0] for sort in ("name", "state")] == ["task-1", "running"]


def test_top_shows_first_who_needs_a_user() -> None:
    """An approval, a paused sandbox, and what the monitor could not solve; unknown usage is not shown as nothing."""
    found = diagnoses_of(
        [
            {"type": "monitor.intervention_outcome", "subject": "sbx-c", "data": {"outcome": "ignored"}},
            {"type": "monitor.intervention_outcome", "subject": "sbx-d", "data": {"outcome": "obeyed"}},
            {"type": "monitor.guardian_analysed", "subject": "sbx-d", "data": {"needs_steering": True, "rule": "r"}},
        ]
    )
    tasks = [
        view("d", sandbox="sbx-d"),
        view("c", sandbox="sbx-c"),
        view("b", sandbox="sbx-b"),
        view("a", sandbox="sbx-a", waits_for="approval ap-1 of Bash"),
    ]
    usage = [GroupUsage(group="a", project="p", input_tokens=3, cost_micro_usd=2_000_000)]
    views = work_views(tasks, paused={"sbx-b"}, known={}, usage=usage, diagnoses=found)
    assert [(one.task, one.needs and one.needs.split()[0]) for one in views] == [
        ("a", "approval"),
        ("b", "resume:"),
        ("c", "diagnosis:"),
        ("d", None),
    ]
    assert work_row(views[0], NOW + timedelta(hours=3, minutes=12))[3:7] == ["3h 12m", None, 3, "$2.0000"]
    unknown = work_views(tasks, paused=set(), known={}, usage=None, diagnoses={})
    assert {one.cost_micro_usd for one in unknown} == {None}
    assert span(timedelta(seconds=-3)) == "0s"
