"""The next step of a sandbox, decided from its record and observation."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from sandherd.contracts.commands import CancelTask, CommandHarness, SandboxLimits, SubmitTask, TaskSpec
from sandherd.contracts.envelope import wrap
from sandherd.contracts.states import SandboxState
from sandherd_worker.worker_exit import ExitCode
from spawner.runtimes.contract import ObservedSandbox, RunEnd
from spawner.sandboxes.lifecycle import next_step
from spawner.sandboxes.lifecycle_facts import LifecycleFacts, LifecycleTimeouts
from spawner.sandboxes.lifecycle_steps import BeginStop, EndTask, Finish, Pause, Rest, Resume, Step
from spawner.sandboxes.sandbox_record import SandboxRecord
from spawner.tasks import task_transitions as of_task
from spawner.tasks.resolved_task import ResolvedTask
from spawner.tasks.task_record import TaskRecord

NOW = datetime(2026, 11, 20, tzinfo=UTC)
ALIVE = ObservedSandbox("sbx-1", alive=True, runs=1)


def pending() -> TaskRecord:
    command = wrap(
        SubmitTask(task="task-1", spec=TaskSpec(text="do it", harness=CommandHarness(argv=["true"]))), SubmitTask.type,
        source="/sandherd/client/x", sequence=1, project="p1", subject="task-1", time=NOW,
    )  # fmt: skip
    return of_task.submitted(command, NOW, f"00-{'a' * 32}-{'b' * 16}-01", ResolvedTask(max_attempts=2))


def sandbox(**changes: Any) -> SandboxRecord:
    """The record of the sandbox of the task's first attempt."""
    record = SandboxRecord(
        project="p1", sandbox="sbx-1", task="task-1", runtime="process", limits=SandboxLimits(), requested_at=NOW,
    )  # fmt: skip
    return record.model_copy(update=changes)


def step(record: SandboxRecord, task: TaskRecord | None = None, seen: ObservedSandbox | None = ALIVE) -> Step:
    return next_step(LifecycleFacts(record, task, seen, NOW, settled=True), LifecycleTimeouts())


def cancelled(task: TaskRecord) -> TaskRecord:
    return of_task.cancelled(task, CancelTask(task="task-1"), NOW)


def timed_out(task: TaskRecord) -> TaskRecord:
    return of_task.failed(task, "too long", "task_timed_out", NOW)


def tried_again(task: TaskRecord) -> TaskRecord:
    assigned = of_task.assigned(task, "sbx-1", NOW)
    return of_task.attempt_failed(assigned, "gone", "worker_lost", NOW)


def elsewhere(task: TaskRecord) -> TaskRecord:
    return of_task.assigned(task, "sbx-2", NOW)


@pytest.mark.parametrize(
    ("what", "reason"),
    [
        (cancelled, "cancelled"),
        (timed_out, "task_timed_out"),
        (tried_again, "worker_lost"),
        (lambda task: cancelled(tried_again(task)), "worker_lost"),
        (elsewhere, "superseded"),
        (lambda task: cancelled(elsewhere(task)), "cancelled"),
    ],
)
def test_sandbox_without_its_task_is_stopped_with_the_reason(what: Any, reason: str) -> None:
    """The reason is given also if the task ended before it was assigned, and whatever a later attempt does."""
    assert step(sandbox(state=SandboxState.REQUESTED), what(pending())) == BeginStop(reason)


ALONE = {"task": None, "running_at": NOW}
RUNNING, PAUSED = SandboxState.RUNNING, SandboxState.PAUSED


@pytest.mark.parametrize(
    ("state", "wanted", "frozen", "what"),
    [
        (RUNNING, False, True, Resume()),
        (RUNNING, False, False, Rest()),
        (RUNNING, False, None, Rest()),
        (RUNNING, True, True, Pause()),
        (RUNNING, True, False, Pause()),
        (PAUSED, True, True, Rest()),
        (PAUSED, True, False, Pause()),
        (PAUSED, True, None, Rest()),
        (PAUSED, False, True, Resume()),
        (PAUSED, False, False, Resume()),
        (SandboxState.SPAWNING, False, True, None),
    ],
)
def test_observed_freeze_decides_the_next_step(
    state: SandboxState, wanted: bool, frozen: bool | None, what: Step | None
) -> None:
    """A runtime may freeze or thaw late, after the opposite request: what is observed counts, where it is known."""
    record = sandbox(**ALONE, state=state, pause_wanted=wanted)
    found = step(record, seen=replace(ALIVE, frozen=frozen))
    assert isinstance(found, Rest) if what is None else found == what


def test_stopping_sandbox_is_not_thawed_first() -> None:
    """Stopping a frozen sandbox thaws it by itself."""
    record = sandbox(state=RUNNING)
    assert step(record, cancelled(elsewhere(pending())), replace(ALIVE, frozen=True)) == BeginStop("cancelled")


@pytest.mark.parametrize("end", [RunEnd(5), RunEnd(0, recovered_code=5, last_line="connected")])
def test_worker_that_could_not_write_has_a_full_disk(end: RunEnd) -> None:
    """The reason is the disk, recovered or not, with a task or without; the last line of a log is no reason."""
    seen = ObservedSandbox("sbx-1", alive=False, runs=2, end=end)
    alone = sandbox(task=None, state=SandboxState.RUNNING, recoveries=9, recovered_at=NOW)
    error = "the worker could not write its events: the disk of its sandbox is full or refuses writes"
    assert step(alone, seen=seen) == BeginStop("worker_lost", error)
    working = sandbox(state=SandboxState.RUNNING, recoveries=9, recovered_at=NOW)
    assert step(working, of_task.assigned(pending(), "sbx-1", NOW), seen) == EndTask(error, "worker_lost")


def test_sandbox_whose_events_are_published_names_its_full_disk_without_recovery() -> None:
    """The worker of a sandbox without a task has published its end: the record has the reason at once."""
    seen = ObservedSandbox("sbx-1", alive=False, runs=1, end=RunEnd(ExitCode.DISK_REFUSED, last_line="connected"))
    error = "the worker could not write its events: the disk of its sandbox is full or refuses writes"
    alone = sandbox(task=None, state=SandboxState.RUNNING)
    assert step(alone, seen=seen) == BeginStop("worker_lost", error)
    stopping = sandbox(task=None, state=SandboxState.STOPPING, stopped=True)
    assert step(stopping, seen=seen) == Finish(unsaid=False)


def test_frozen_sandbox_whose_end_is_awaited_is_thawed() -> None:
    """Its worker can't publish the awaited event while it is frozen; a lost one can't be thawed."""
    expired = sandbox(state=RUNNING, expires_at=NOW)
    task = of_task.running(of_task.assigned(pending(), "sbx-1", NOW), "sbx-1", NOW)
    for seen, what in ((replace(ALIVE, frozen=True), Resume()), (ALIVE, None), (None, None)):
        found = next_step(LifecycleFacts(expired, task, seen, NOW, settled=False), LifecycleTimeouts())
        assert found == what if what else isinstance(found, Rest)
