"""Other services read the spawner's records by the classes in the contracts."""

from datetime import UTC, datetime

import pytest
from pydantic import ValidationError

from sandherd.contracts.attempt_inputs import Previous
from sandherd.contracts.commands import CommandHarness, SandboxLimits, TaskSpec
from sandherd.contracts.records import SharedSandboxRecord, SharedTaskRecord
from sandherd.contracts.states import SandboxState, TaskState
from spawner.sandboxes.sandbox_record import SandboxRecord
from spawner.tasks.task_record import TaskRecord

NOW = datetime(2026, 11, 20, tzinfo=UTC)


@pytest.mark.parametrize("state", list(SandboxState))
def test_sandbox_record_is_read_as_written(state: SandboxState) -> None:
    """Fields with default values, such as the first state, are absent from the document."""
    record = SandboxRecord(
        project="p1", sandbox="sbx-1", runtime="process", limits=SandboxLimits(), requested_at=NOW, state=state
    )
    for changes in ({}, {"task": "task-1", "attempt": 2, "unit": "wrm-1", "reason": "idle", "expires_at": NOW}):
        written = record.model_copy(update=changes)
        read = SharedSandboxRecord.model_validate_json(written.model_dump_json(exclude_defaults=True))
        assert read.model_dump() == written.model_dump(include=set(SharedSandboxRecord.model_fields))


@pytest.mark.parametrize("state", list(TaskState))
def test_task_record_is_read_as_written(state: TaskState) -> None:
    """The record names the sandboxes of the current and the previous attempt."""
    spec = TaskSpec(text="do it", harness=CommandHarness(argv=["true"]))
    record = TaskRecord(
        project="p1", task="task-1", life="a" * 32, spec=spec, runtime="process", limits=SandboxLimits(),
        submitted_at=NOW, state=state,
    )  # fmt: skip
    for changes in ({}, {"sandbox": "sbx-2", "attempt": 2, "previous": Previous(attempt=1, sandbox="sbx-1")}):
        written = record.model_copy(update=changes)
        read = SharedTaskRecord.model_validate_json(written.model_dump_json(exclude_defaults=True))
        assert read.model_dump() == written.model_dump(include=set(SharedTaskRecord.model_fields))
        assert read.sandboxes == ({"sbx-1", "sbx-2"} if changes else set())


def test_unknown_state_is_an_error() -> None:
    """No decision is made on a record that can't be read."""
    with pytest.raises(ValidationError, match="state"):
        SharedSandboxRecord.model_validate_json('{"state": "melted"}')
