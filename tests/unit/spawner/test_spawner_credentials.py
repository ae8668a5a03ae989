"""Whether a worker may start its agent: only for what is wanted, and only for the current attempt."""

from datetime import UTC, datetime

import pytest

from sandherd.contracts.commands import CommandHarness, TaskSpec
from sandherd.contracts.specs import Limits, SandboxSpec
from sandherd.contracts.states import SandboxState, TaskState
from spawner.sandboxes.credentials import may_start, refusal
from spawner.sandboxes.record import SandboxRecord
from spawner.tasks.record import TaskRecord

NOW = datetime(2026, 11, 21, tzinfo=UTC)
WANTED = {SandboxState.REQUESTED, SandboxState.SPAWNING, SandboxState.RUNNING, SandboxState.PAUSED}


def sandbox(state: SandboxState, task: str | None = "task-1") -> SandboxRecord:
    return SandboxRecord(
        project="p1", sandbox="sbx-1", task=task, runtime="process", limits=Limits(), spec=SandboxSpec(),
        requested_at=NOW, state=state, fence=7,
    )  # fmt: skip


def task(state: TaskState = TaskState.ASSIGNED, held_by: str | None = "sbx-1") -> TaskRecord:
    return TaskRecord(
        project="p1", task="task-1", life="a" * 32, runtime="process", limits=Limits(), submitted_at=NOW, state=state,
        sandbox=held_by, spec=TaskSpec(text="do it", harness=CommandHarness(argv=["true"])),
    )  # fmt: skip


@pytest.mark.parametrize("state", SandboxState)
def test_only_in_a_sandbox_that_is_wanted(state: SandboxState) -> None:
    """What is ending or has ended starts nothing, with or without a task."""
    assert may_start(sandbox(state), task()) is (state in WANTED)
    assert may_start(sandbox(state, None), None) is (state in WANTED)


@pytest.mark.parametrize(
    "of",
    [None, task(held_by="sbx-2"), task(TaskState.PENDING, None), task(TaskState.CANCELLED), task(TaskState.FAILED)],
    ids=["gone", "in another sandbox", "waiting again", "cancelled", "failed"],
)
def test_only_for_the_current_attempt(of: TaskRecord | None) -> None:
    """A worker that comes late to an attempt that is over does not begin it once more."""
    assert not may_start(sandbox(SandboxState.RUNNING), of)


def test_an_older_attempt_gets_no_credential() -> None:
    """The fencing token is that of the record; one that has ended is refused unless it still has something to say."""
    running, ended = sandbox(SandboxState.RUNNING), sandbox(SandboxState.TERMINATED)
    assert refusal(running, 7, 7) is None
    assert "older attempt" in (refusal(running, 7, 6) or "")
    assert "has ended" in (refusal(ended, 7, 7) or "")
    assert refusal(ended.model_copy(update={"unsaid": True}), 7, 7) is None
