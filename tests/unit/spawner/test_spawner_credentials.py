"""Whether a worker may start its agent: only in a wanted sandbox, and only for the current attempt."""

from datetime import UTC, datetime

import pytest

from sandherd.contracts.commands import CommandHarness, TaskSpec
from sandherd.contracts.specs import SandboxLimits, SandboxSpec
from sandherd.contracts.states import SandboxState, TaskState
from spawner.sandboxes.credentials import may_start, refusal
from spawner.sandboxes.sandbox_record import SandboxRecord
from spawner.tasks.task_record import TaskRecord

NOW = datetime(2026, 11, 21, tzinfo=UTC)
WANTED = {SandboxState.REQUESTED, SandboxState.SPAWNING, SandboxState.RUNNING, SandboxState.PAUSED}


def sandbox(state: SandboxState, task: str | None = "task-1") -> SandboxRecord:
    return SandboxRecord(
        project="p1", sandbox="sbx-1", task=task, runtime="process", limits=SandboxLimits(), spec=SandboxSpec(),
        requested_at=NOW, state=state, fence=7,
    )  # fmt: skip


def task(state: TaskState = TaskState.ASSIGNED, held_by: str | None = "sbx-1") -> TaskRecord:
    return TaskRecord(
        project="p1", task="task-1", life="a" * 32, runtime="process", limits=SandboxLimits(), submitted_at=NOW,
        state=state, sandbox=held_by, spec=TaskSpec(text="do it", harness=CommandHarness(argv=["true"])),
    )  # fmt: skip


@pytest.mark.parametrize("state", SandboxState)
def test_only_a_wanted_sandbox_may_start(state: SandboxState) -> None:
    """A stopping or ended sandbox starts nothing, with or without a task."""
    assert may_start(sandbox(state), task()) is (state in WANTED)
    assert may_start(sandbox(state, None), None) is (state in WANTED)


@pytest.mark.parametrize(
    "of",
    [None, task(held_by="sbx-2"), task(TaskState.PENDING, None), task(TaskState.CANCELLED), task(TaskState.FAILED)],
    ids=["gone", "in another sandbox", "waiting again", "cancelled", "failed"],
)
def test_only_the_current_attempt_may_start(of: TaskRecord | None) -> None:
    """A worker that comes late to an ended attempt does not run it again."""
    assert not may_start(sandbox(SandboxState.RUNNING), of)


def test_older_attempt_gets_no_credential() -> None:
    """The fencing token must be the record's; an ended sandbox is refused unless it has unpublished events."""
    running, ended = sandbox(SandboxState.RUNNING), sandbox(SandboxState.TERMINATED)
    assert refusal(running, 7, 7) is None
    assert "older attempt" in (refusal(running, 7, 6) or "")
    assert "has ended" in (refusal(ended, 7, 7) or "")
    assert refusal(ended.model_copy(update={"unsaid": True}), 7, 7) is None
