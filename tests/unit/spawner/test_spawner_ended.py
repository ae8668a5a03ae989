"""What is said and what is kept of a sandbox and a task that have ended."""

import json
from datetime import UTC, datetime

import pytest

from sandherd.contracts.states import SandboxState
from spawner.sandboxes import decisions as of_sandbox
from spawner.sandboxes.record import SandboxRecord

NOW = datetime(2026, 11, 20, tzinfo=UTC)


@pytest.mark.parametrize("unsaid", [True, False])
def test_the_end_of_a_sandbox_says_whether_something_was_left_unsaid(unsaid: bool) -> None:
    """The history knows of what never reached it from nobody else."""
    record = SandboxRecord(
        project="p1", sandbox="sbx-1", task="task-1", runtime="process", requested_at=NOW, state=SandboxState.STOPPING
    )
    ended = of_sandbox.terminated(record, unsaid=unsaid, now=NOW)
    assert json.loads(ended.outbox[-1])["data"]["unsaid"] is unsaid
