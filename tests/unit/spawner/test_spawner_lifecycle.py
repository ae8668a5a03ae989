"""What is to be done next with a sandbox, decided from what is known of it."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from sandherd.contracts.commands import CancelTask, CommandHarness, Limits, SubmitTask, TaskSpec
from sandherd.contracts.envelope import wrap
from sandherd.contracts.states import SandboxState
from spawner.runtimes.contract import Seen
from spawner.sandboxes.facts import Facts, Rules
from spawner.sandboxes.lifecycle import next_step
from spawner.sandboxes.moves import BeginStop, Pause, Rest, Resume, Step
from spawner.sandboxes.record import SandboxRecord
from spawner.tasks import decisions as of_task
from spawner.tasks.record import TaskRecord
from spawner.tasks.terms import Terms

NOW = datetime(2026, 11, 20, tzinfo=UTC)
ALIVE = Seen("sbx-1", alive=True, runs=1)


def pending() -> TaskRecord:
    command = wrap(
        SubmitTask(task="task-1", spec=TaskSpec(text="do it", harness=CommandHarness(argv=["true"]))), SubmitTask.type,
        source="/sandherd/client/x", sequence=1, project="p1", subject="task-1", time=NOW,
    )  # fmt: skip
    return of_task.submitted(command, NOW, f"00-{'a' * 32}-{'b' * 16}-01", Terms(max_attempts=2))


def sandbox(**changes: Any) -> SandboxRecord:
    """The one of its first attempt."""
    record = SandboxRecord(
        project="p1", sandbox="sbx-1", task="task-1", runtime="process", limits=Limits(), requested_at=NOW,
    )  # fmt: skip
    return record.model_copy(update=changes)


def step(record: SandboxRecord, task: TaskRecord | None = None, seen: Seen | None = ALIVE) -> Step:
    return next_step(Facts(record, task, seen, NOW, settled=True), Rules())


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
def test_a_sandbox_that_its_task_has_left_says_why(what: Any, reason: str) -> None:
    """Also if the task had ended before it was ever assigned to it, and whatever became of a later attempt."""
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
def test_what_stands_still_is_what_is_to(
    state: SandboxState, wanted: bool, frozen: bool | None, what: Step | None
) -> None:
    """What was asked of a runtime may take effect late, after the opposite: what is seen counts, where it is known."""
    record = sandbox(**ALONE, state=state, pause_wanted=wanted)
    found = step(record, seen=replace(ALIVE, frozen=frozen))
    assert isinstance(found, Rest) if what is None else found == what


def test_one_that_is_being_ended_is_not_thawed_first() -> None:
    """Ending does that itself."""
    record = sandbox(state=RUNNING)
    assert step(record, cancelled(elsewhere(pending())), replace(ALIVE, frozen=True)) == BeginStop("cancelled")
