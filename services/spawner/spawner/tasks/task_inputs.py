"""Inputs of a task: files that it takes from the stored results of its dependencies."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from typing import Final

from sandherd.contracts.states import TaskState
from sandherd.contracts.task_inputs import TaskInput
from spawner.live_state import LiveState
from spawner.sandboxes.last_events import SAVED_WITHIN
from spawner.spec_resolution import Refusal
from spawner.tasks.task_record import TaskRecord

FIELD: Final = "spec.inputs"

Dependencies = Mapping[str, TaskRecord]
"""The records of the tasks that inputs name, by the tasks' names. Tasks that do not exist are left out."""


def input_refusal(inputs: Sequence[TaskInput], dependencies: Dependencies) -> Refusal | None:
    """Why a submitted task can't take these inputs, or None."""
    for task_input in inputs:
        if task_input.sandbox is not None or task_input.work is not None:
            return Refusal(f"sandbox and work of the input from {task_input.task} are set by the spawner only", FIELD)
        dependency = dependencies.get(task_input.task)
        if dependency is not None and not dependency.spec.keep_work:
            return Refusal(f"its dependency {task_input.task} does not store its result (keep_work)", FIELD)
    return None


async def load_dependencies(live: LiveState, project: str, inputs: Sequence[TaskInput]) -> Dependencies:
    """The records of the tasks that the inputs name. Raises `StoreUnavailableError`."""
    found = [await live.tasks.load(f"{project}.{name}") for name in {task_input.task for task_input in inputs}]
    return {held.record.task: held.record for held in found if held is not None}


async def with_results(
    live: LiveState, task: TaskRecord, now: datetime, is_caught_up: Callable[[], Awaitable[bool]]
) -> TaskRecord | str | None:
    """The task with references to the results from which it takes files. If a result will never exist, the error.

    Returns None while a result may still arrive. `is_caught_up` returns whether all earlier events of agents are
    handled.
    """
    dependencies = await load_dependencies(live, task.project, task.spec.inputs)
    missing_result = unstored(task.spec.inputs, dependencies)
    if missing_result is None:
        return resolved(task, dependencies)
    record = dependencies.get(missing_result)
    if record is None or record.ended_at is None:
        return None  # the dependency has not ended; if it is missing, the next check of dependencies fails this task
    if now < record.ended_at + SAVED_WITHIN and not await is_caught_up():
        return None
    dependencies = await load_dependencies(live, task.project, task.spec.inputs)  # again: a result may have arrived
    still_missing = unstored(task.spec.inputs, dependencies)
    return resolved(task, dependencies) if still_missing is None else no_result(still_missing)


def unstored(inputs: Sequence[TaskInput], dependencies: Dependencies) -> str | None:
    """The first task named by the inputs that has no stored result; None if all have one."""
    for task_input in inputs:
        record = dependencies.get(task_input.task)
        if record is None or record.state is not TaskState.COMPLETED or record.work is None:
            return task_input.task
    return None


def resolved(task: TaskRecord, dependencies: Dependencies) -> TaskRecord:
    """The task with references to the stored results in its inputs."""
    inputs = tuple(
        task_input.model_copy(
            update={"sandbox": dependencies[task_input.task].sandbox, "work": dependencies[task_input.task].work}
        )
        for task_input in task.spec.inputs
    )
    return task.model_copy(update={"spec": task.spec.model_copy(update={"inputs": inputs})}) if inputs else task


def no_result(task: str) -> str:
    """The error of a task that takes files from `task`, which has no stored result."""
    return (
        f"its dependency {task} has stored no result: that task left no files, or more than "
        f"SANDHERD_MAX_WORK_MB; see `sandherd files {task}`"
    )
