"""`sandherd budgets` of unknown tasks and projects, and of ended tasks."""

from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from sandherd.contracts.requests import (
    BudgetLine,
    BudgetList,
    GrantBudget,
    ListBudgets,
    ListProjects,
    ListSchedules,
    ListSecrets,
    ListSubscriptions,
    ProjectList,
    ScheduleList,
    SecretList,
    SetBudget,
    SubscriptionList,
    TaskView,
)
from sandherd.contracts.states import TaskState
from sandherd.contracts.subjects import Principal
from sandherd.stack.broker import Broker
from tests.patience import PATIENCE

SPAWNER, INGEST, MONITOR = Principal.SPAWNER, Principal.EVENT_INGEST, Principal.MONITOR
TASK = "task-one"
NOTHING = BudgetList(budgets=[BudgetLine(scope="task", task=TASK, budget="turns")])
NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)
Neighbours = Any
Sandherd = Callable[..., Any]


@pytest.fixture
async def monitor(neighbours: Neighbours, herd: Broker) -> AsyncIterator[None]:
    """A monitor that accepts everything, and whose task has used nothing."""
    async with herd.bus(MONITOR) as bus:
        neighbours.buses[MONITOR] = bus
        for request in (ListBudgets, GrantBudget, SetBudget):
            await neighbours.answer(MONITOR, request, lambda _: NOTHING)
        yield
        del neighbours.buses[MONITOR]


@pytest.mark.usefixtures("monitor")
async def test_budget_of_an_unknown_task_is_an_error(neighbours: Neighbours, sandherd: Sandherd) -> None:
    """The result for an unknown task is an error, and not a table of zeros as for a task that has not started."""
    for words in (["show", "nope"], ["grant", "nope", "turns=1"]):
        status, out, err = await sandherd("budgets", *words)
        assert (status, out) == (1, "")
        assert "there is no task nope" in err
    neighbours.tasks[TASK] = view(TaskState.PENDING)
    assert (await sandherd("budgets", "show", TASK))[0] == 0
    assert [type(one) for one in neighbours.requested if isinstance(one, GrantBudget)] == []


@pytest.mark.usefixtures("monitor")
async def test_grant_of_a_task_that_has_ended(neighbours: Neighbours, sandherd: Sandherd) -> None:
    """A completed task is refused; for a failed one the output states that it needs a retry; for a live one nothing."""
    found = {}
    for state in (TaskState.COMPLETED, TaskState.FAILED, TaskState.RUNNING):
        neighbours.tasks[TASK] = view(state)
        status, _, err = await sandherd("budgets", "grant", TASK, "turns=1")
        found[state] = status, err
    assert found[TaskState.COMPLETED][0] == 1
    assert f"{TASK} is completed: it can use nothing more" in found[TaskState.COMPLETED][1]
    assert found[TaskState.FAILED][0] == 0
    assert f"after `sandherd tasks retry {TASK}`" in found[TaskState.FAILED][1]
    assert found[TaskState.RUNNING] == (0, "")


@pytest.mark.usefixtures("monitor")
async def test_budget_of_an_unknown_project_is_set_only_with_create(
    neighbours: Neighbours, sandherd: Sandherd, herd: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mistyped project is an error; the herd's own budget needs no project."""
    monkeypatch.setattr("sandherd.client.projects.CHECK_SECONDS", float(PATIENCE))
    await neighbours.answer(SPAWNER, ListSecrets, lambda _: SecretList(secrets=[]))
    await neighbours.answer(SPAWNER, ListProjects, lambda _: ProjectList(projects=[]))
    await neighbours.answer(SPAWNER, ListSchedules, lambda _: ScheduleList(schedules=[]))
    await neighbours.answer(INGEST, ListSubscriptions, lambda _: SubscriptionList(subscriptions=[], most=10))
    operator, day = ["--credentials", str(herd.credentials(Principal.OPERATOR))], ["--day", "cost=5usd"]
    status, out, err = await sandherd(*operator, "budgets", "set", "nope", *day)
    assert (status, out) == (1, "")
    assert "there is no project nope" in err
    for words in (["nope", *day, "--create"], day):
        assert (await sandherd(*operator, "budgets", "set", *words))[0] == 0


def view(state: TaskState) -> TaskView:
    return TaskView(project="default", task=TASK, state=state, submitted_at=NOON, text="do it")
