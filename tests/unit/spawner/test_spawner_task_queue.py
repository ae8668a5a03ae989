"""The queue of pending tasks: its limits, dependencies, and the cost of a decision."""

import random
import sys
from types import FrameType
from typing import Any

import pytest

from sandherd.contracts.records import BudgetBlocks
from sandherd.contracts.requests import SandboxView
from sandherd.contracts.states import SandboxState, TaskState
from spawner.tasks.capacity import SandboxLimits
from spawner.tasks.task_queue import TaskQueue
from tests.unit.spawner.queue_model import (
    AGE,
    BEGIN,
    PRIORITIES,
    after,
    begin,
    key_of,
    names_in_order,
    notify,
    queue_of,
    sandbox,
    task,
)

# --- limits ----------------------------------------------------------------------------------------------------------


def test_full_project_or_runtime_blocks_no_other() -> None:
    """The next task is the first that fits; each waits for its own limit."""
    allowed = SandboxLimits(total=4, project=2, projects={"p2": 1}, runtimes={"other": 1})
    waiting = [task(f"a{number}", 100 - number) for number in range(4)]
    waiting += [task(f"b{number}", 50 - number, project="p2") for number in range(2)]
    waiting += [task(f"c{number}", 10 - number, project="p3", runtime="other") for number in range(2)]
    queue = queue_of(waiting, allowed)
    assert names_in_order(queue) == ["a0", "a1", "b0", "c0"]
    assert queue.waits_for("p1.a2", BEGIN) == "2 of 2 sandboxes of project p1 live; it is next"
    assert queue.waits_for("p2.b1", BEGIN) == "1 of 1 sandboxes of project p2 live; 2 tasks are before it"
    assert queue.waits_for("p3.c1", BEGIN) == "1 of 1 sandboxes in other live; 3 tasks are before it"
    queue.remove_sandbox(key_of(sandbox(waiting[-2])))
    assert names_in_order(queue) == ["c1"]
    queue.remove_sandbox(key_of(sandbox(waiting[0])))
    assert names_in_order(queue) == ["a2"]


def test_project_over_budget_begins_no_task() -> None:
    """Its tasks wait and state the reason; others begin. Once it is within its budget, its tasks begin in order."""
    queue = queue_of([task("a", 20), task("b", 10), task("c", 30, project="p2")])
    queue.change_blocks(BudgetBlocks(projects={"p1": "project p1 has used 5 turns of 5 turns of a day"}))
    assert names_in_order(queue) == ["c"]
    assert queue.waits_for("p1.a", BEGIN) == "project p1 has used 5 turns of 5 turns of a day: no task begins"
    assert queue.capacity.exhausted_limit("p1", "process", of_task=False) is None
    queue.change_blocks(BudgetBlocks(herd="the herd has used 9 turns of 9 turns of a day"))
    assert queue.next(BEGIN) is None
    queue.change_blocks(BudgetBlocks())
    assert names_in_order(queue) == ["a", "b"]


def test_sandbox_without_a_task_uses_capacity() -> None:
    """A sandbox created by a client counts as long as it lives."""
    queue = queue_of([task("a")], SandboxLimits(total=1))
    own = SandboxView(project="p9", sandbox="sbx-own", state=SandboxState.PAUSED, runtime="process", requested_at=BEGIN)
    notify(queue, own)
    assert queue.next(BEGIN) is None
    assert queue.waits_for("p1.a", BEGIN) == "1 of 1 sandboxes live; it is next"
    notify(queue, own.model_copy(update={"state": SandboxState.TERMINATED}))
    assert names_in_order(queue) == ["a"]


def test_task_with_a_requested_sandbox_needs_no_capacity() -> None:
    """A scheduler that died between its two writes has used the capacity for this task."""
    waiting = task("a")
    queue = queue_of([task("older", 9), waiting], SandboxLimits(total=1))
    notify(queue, sandbox(waiting, SandboxState.REQUESTED))
    assert names_in_order(queue) == ["a"]


# --- what a task waits for -------------------------------------------------------------------------------------------


def test_task_waits_for_all_its_dependencies() -> None:
    """The reason names the dependencies that are not completed. Their changes to other states have no effect."""
    one, two = task("one", 5), task("two", 4)
    queue = queue_of([task("c", 9, depends_on=["one", "two"]), one, two])
    assert queue.waits_for("p1.c", BEGIN) == "one has to be completed (pending), and 1 more of its dependencies"
    assert names_in_order(queue) == ["one", "two"]
    notify(queue, one.model_copy(update={"state": TaskState.RUNNING}))
    notify(queue, two.model_copy(update={"state": TaskState.COMPLETED}))
    assert queue.waits_for("p1.c", BEGIN) == "one has to be completed (running)"
    assert queue.next(BEGIN) is None
    notify(queue, one.model_copy(update={"state": TaskState.COMPLETED}))
    assert names_in_order(queue) == ["c"]


@pytest.mark.parametrize("end", [TaskState.FAILED, TaskState.CANCELLED, None])
def test_task_with_failed_dependency_is_unstartable(end: TaskState | None) -> None:
    """A task that depends on a failed or missing task never starts, and neither do its dependants."""
    one = task("one", state=TaskState.RUNNING)
    queue = queue_of([one, task("c", depends_on=["one"]), task("d", depends_on=["c"])])
    assert queue.unstartable() == []
    if end is None:
        queue.remove_task("p1.one")
    else:
        notify(queue, one.model_copy(update={"state": end}))
    assert queue.unstartable() == ["p1.c"]
    assert queue.next(BEGIN) is None


def test_retry_waits_for_its_time_and_its_last_sandbox() -> None:
    """The next attempt does not start before its time, nor before the sandbox of the previous attempt has ended."""
    again = task("a", attempt=2, not_before=after(10))
    queue = queue_of([again])
    last = sandbox(task("a"), SandboxState.STOPPING)
    notify(queue, last)
    assert queue.wakes_at() == after(10)
    assert queue.waits_for("p1.a", BEGIN) == "the sandbox of attempt 1 is still ending"
    assert queue.next(after(11)) is None
    notify(queue, last.model_copy(update={"state": SandboxState.TERMINATED}))
    assert names_in_order(queue, after(11)) == ["a"]
    queue = queue_of([again])
    assert queue.next(after(9)) is None
    assert queue.waits_for("p1.a", after(9)) == "retry at 2026-11-20 00:00:10 UTC"
    assert names_in_order(queue, after(10)) == ["a"]


def test_deferred_task_is_retried_later() -> None:
    """While a task is deferred, other tasks start."""
    queue = queue_of([task("a", 5), task("b", 1)], SandboxLimits(total=9))
    queue.defer("p1.a", after(1))
    assert names_in_order(queue) == ["b"]
    assert queue.wakes_at() == after(1)
    assert names_in_order(queue, after(1)) == ["a"]


def test_overdue_tasks_are_listed_until_they_end() -> None:
    """Pending and running tasks with an expired time limit are listed, in the order in which the limits expired."""
    one = task("one", limit_at=after(5), state=TaskState.RUNNING)
    queue = queue_of([one, task("two", limit_at=after(3)), task("never")])
    assert queue.wakes_at() == after(3)
    assert queue.overdue(after(4)) == ["p1.two"]
    assert queue.overdue(after(5)) == ["p1.two", "p1.one"]
    notify(queue, one.model_copy(update={"state": TaskState.FAILED, "limit_at": None}))
    queue.remove_task("p1.two")
    assert queue.overdue(after(9)) == []
    assert queue.wakes_at() is None


# --- cost ------------------------------------------------------------------------------------------------------------


def requests_of_a_tick(queue: TaskQueue) -> None:
    """The queries of a scheduler's tick, except for the next task."""
    queue.unstartable()
    queue.overdue(BEGIN)
    queue.oldest()
    queue.wakes_at()


def calls_of_decisions(waiting: int) -> int:
    """The number of function calls for a hundred decisions, with all queries of the scheduler at each tick."""
    draw = random.Random(1)
    views = [
        task(f"t{number}", draw.random() * AGE, project=f"p{number % 20}", priority=draw.choice(PRIORITIES))
        for number in range(waiting)
    ]
    queue = queue_of(views, SandboxLimits(total=5, project=3))
    calls = 0

    def count(_frame: FrameType, event: str, _arg: Any) -> None:
        nonlocal calls
        calls += event in {"call", "c_call"}

    for number in range(100):
        sys.setprofile(count)
        begun = queue.next(BEGIN)
        assert begun is not None
        begin(queue, begun)
        requests_of_a_tick(queue)
        queue.remove_sandbox(key_of(sandbox(begun)))
        notify(queue, begun.model_copy(update={"task": f"n{number}"}))
        sys.setprofile(None)
    return calls


def test_decision_takes_constant_calls() -> None:
    """Calls are counted, because time depends on the machine; the benchmark measures time."""
    assert calls_of_decisions(10_000) <= 1.1 * calls_of_decisions(100)


def test_removed_tasks_leave_no_memory() -> None:
    """A queue exists for months, so its memory is limited by the number of waiting tasks."""
    queue = queue_of([task("first", 9)], SandboxLimits(total=1, projects={"p1": 0}))
    for number in range(5000):
        notify(queue, task(f"t{number}"))
        queue.remove_task(f"p1.t{number}")
    stored = sum(len(line) for line in queue._ready._lines.values())
    assert stored < 2000
    assert len(queue._ready._ages) < 2000
    assert len(queue) == 1
