"""The history finds tasks by labels, states and time, in any order; and adds up their usage."""

import json
from datetime import timedelta
from typing import Any

import pytest

from event_ingest.queries.tasks_and_sandboxes import list_sandboxes, list_tasks
from event_ingest.queries.usage import add_up_usage
from sandherd.contracts.events.agent import AgentUsage
from sandherd.contracts.events.task import TaskSubmitted
from sandherd.contracts.model import MAX_WHOLE
from sandherd.contracts.names import FLEET
from sandherd.contracts.requests import GetUsage, ListPastSandboxes, ListPastTasks
from sandherd.contracts.states import TaskState

BATCH = {"sandherd/batch": "batch-1"}


async def ask(history: Any, query: Any, question: Any, project: str = "default") -> Any:
    async with history.database.reading() as connection:
        return await query(connection, question, project, 1_000_000)


async def ingest_labelled(history: Any, script: Any, task: str, sandbox: str, labels: dict[str, str]) -> None:
    """Store a task with labels, from its submission to its end in this sandbox."""
    events = script.life(task, sandbox)
    changed = [
        event.model_copy(update={"data": event.data.model_copy(update={"labels": labels})})
        if isinstance(event.data, TaskSubmitted)
        else event
        for event in events
    ]
    await history.deliver(changed)


@pytest.mark.parametrize("sort", ["newest", "oldest", "name", "state"])
async def test_pages_have_each_labelled_task_once_in_order(history: Any, script: Any, sort: Any) -> None:
    """Pages of one task yield, in each order, all tasks of a label once and no other."""
    for name, labels in (("task-b", BATCH), ("task-a", BATCH | {"team": "web"}), ("task-c", {})):
        await ingest_labelled(history, script, name, f"sbx-{name[-1]}", labels)
    question, found = ListPastTasks(labels=BATCH, sort=sort, limit=1), []
    while True:
        page = await ask(history, list_tasks, question)
        found += page.tasks
        if page.next_cursor is None:
            break
        question = question.model_copy(update={"cursor": page.next_cursor})
    expected = {"newest": ["task-a", "task-b"], "oldest": ["task-b", "task-a"]}.get(sort, ["task-a", "task-b"])
    assert [view.task for view in found] == expected
    assert {view.task: view.labels for view in found}["task-a"] == BATCH | {"team": "web"}
    boxes = (await ask(history, list_sandboxes, ListPastSandboxes(labels=BATCH, sort="name", since=None))).sandboxes
    assert [view.sandbox for view in boxes] == ["sbx-a", "sbx-b"]


async def test_states_and_time_restrict_a_list(history: Any, script: Any) -> None:
    """Several states are alternatives; `since` excludes tasks that were submitted before."""
    await history.deliver(script.life("task-1", "sbx-1"))
    [task] = (await ask(history, list_tasks, ListPastTasks(states=[TaskState.FAILED, TaskState.COMPLETED]))).tasks
    assert (await ask(history, list_tasks, ListPastTasks(states=[TaskState.FAILED, TaskState.CANCELLED]))).tasks == []
    assert (await ask(history, list_tasks, ListPastTasks(since=task.submitted_at))).tasks == [task]
    later = task.submitted_at + timedelta(seconds=1)
    assert (await ask(history, list_tasks, ListPastTasks(since=later))).tasks == []


async def test_usage_is_added_up_per_group(history: Any, script: Any) -> None:
    """The sums by task, label, model and day are exact, also beyond the limit of groups."""
    await ingest_labelled(history, script, "task-1", "sbx-1", {"team": "web"})
    await ingest_labelled(history, script, "task-2", "sbx-2", {"team": "data"})
    for sandbox, model, cost in (("sbx-1", "m1", 5), ("sbx-1", "m2", 7), ("sbx-2", "m1", 40)):
        usage_fields = {"model": model, "input_tokens": 10, "output_tokens": 2, "cost_micro_usd": cost}
        await history.deliver([script.agent(AgentUsage.type, sandbox, **usage_fields)])
    by_task = await ask(history, add_up_usage, GetUsage(by="task"))
    assert [(one.group, one.project, one.cost_micro_usd) for one in by_task.groups] == [
        ("task-2", "default", 40),
        ("task-1", "default", 12),
    ]
    assert (by_task.total.cost_micro_usd, by_task.total.input_tokens, by_task.group_count) == (52, 30, 2)
    by_label = await ask(history, add_up_usage, GetUsage(by="label", label="team", limit=1))
    assert [(one.group, one.cost_micro_usd) for one in by_label.groups] == [("data", 40)]
    assert (by_label.total.cost_micro_usd, by_label.group_count) == (52, 2)
    models = await ask(history, add_up_usage, GetUsage(by="model", labels={"team": "web"}))
    assert [(one.group, one.cost_micro_usd) for one in models.groups] == [("m2", 7), ("m1", 5)]
    assert (await ask(history, add_up_usage, GetUsage(by="day", tasks=["task-1"]))).total.cost_micro_usd == 12
    assert (await ask(history, add_up_usage, GetUsage(by="project"), "other")).groups == []
    assert json.loads(by_task.model_dump_json())["total"]["output_tokens"] == 6


async def test_usage_that_a_sandbox_invents_breaks_no_sum(history: Any, script: Any) -> None:
    """The largest amounts that a worker may publish do not break a sum: those of the project and of all stop there."""
    await ingest_labelled(history, script, "task-1", "sbx-1", {})
    for number in range(3):
        most = dict.fromkeys(("input_tokens", "output_tokens", "cost_micro_usd"), MAX_WHOLE)
        await history.deliver([script.agent(AgentUsage.type, "sbx-1", model=f"m{number % 2}", **most)])
    for by in ("task", "project", "model", "day"):
        found = await ask(history, add_up_usage, GetUsage(by=by), FLEET)
        assert found.total.cost_micro_usd == MAX_WHOLE
        assert max(group.input_tokens for group in found.groups) == MAX_WHOLE
