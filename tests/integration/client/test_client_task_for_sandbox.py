"""Commands that expect a sandbox accept a task, which stands for its live or last one."""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from sandherd.contracts.requests import ApprovalList, ListApprovals
from sandherd.contracts.states import SandboxState, TaskState
from sandherd.contracts.subjects import Principal
from tests.integration.client.conftest import SANDBOX, TASK, a_sandbox, a_task

Neighbours = Any
Sandherd = Callable[..., Any]
CHANGES = [("pause",), ("resume",), ("extend", "1h"), ("terminate",)]


@pytest.mark.parametrize("change", CHANGES)
async def test_change_of_a_sandbox_takes_its_task(
    neighbours: Neighbours, sandherd: Sandherd, change: tuple[str, ...]
) -> None:
    """The command is sent to the sandbox of the live attempt."""
    state = SandboxState.PAUSED if change == ("pause",) else SandboxState.RUNNING
    expiry = datetime.now(UTC) + timedelta(hours=1)
    neighbours.tasks[TASK] = a_task(TASK, TaskState.RUNNING)
    neighbours.sandboxes[SANDBOX] = a_sandbox(state).model_copy(update={"expires_at": expiry})
    running = asyncio.ensure_future(sandherd("sandboxes", change[0], TASK, *change[1:]))
    assert (await neighbours.take(Principal.SPAWNER)).data.sandbox == SANDBOX
    status, out, err = await running
    assert (status, err) == (0, "")
    assert SANDBOX in out


@pytest.mark.parametrize("verb", ["grant", "deny"])
async def test_answer_to_an_approval_takes_the_task(neighbours: Neighbours, sandherd: Sandherd, verb: str) -> None:
    """The decision is sent to the sandbox of the live attempt."""
    neighbours.tasks[TASK] = a_task(TASK, TaskState.RUNNING)
    neighbours.sandboxes[SANDBOX] = a_sandbox(SandboxState.RUNNING)
    await sandherd("approvals", verb, TASK, "apr-1", "--timeout", "0.1")
    assert (await neighbours.take(Principal.MESSAGE_RELAY)).data.sandbox == SANDBOX


async def test_list_of_approvals_takes_the_task(neighbours: Neighbours, sandherd: Sandherd) -> None:
    """The list accepts a task whose sandbox has ended, too."""
    neighbours.tasks[TASK] = a_task(TASK, TaskState.COMPLETED)
    await neighbours.answer(Principal.EVENT_INGEST, ListApprovals, lambda _: ApprovalList(approvals=[]))
    status, _, err = await sandherd("approvals", "list", "--sandbox", TASK, "--all")
    assert (status, err) == (0, "")
    assert [requested.sandbox for requested in neighbours.requested if isinstance(requested, ListApprovals)] == [
        SANDBOX
    ]


@pytest.mark.parametrize(
    "words", [*(("sandboxes", verb, TASK, *more) for verb, *more in CHANGES), ("approvals", "grant", TASK, "apr-1")]
)
async def test_task_whose_sandbox_has_ended_is_refused_with_its_end(
    neighbours: Neighbours, sandherd: Sandherd, words: tuple[str, ...]
) -> None:
    """The error names the last sandbox, its state and the reason."""
    neighbours.tasks[TASK] = a_task(TASK, TaskState.COMPLETED)
    ended = a_sandbox(SandboxState.TERMINATED).model_copy(update={"reason": "task completed"})
    neighbours.sandboxes[SANDBOX] = ended
    status, out, err = await sandherd(*words)
    assert (status, out) == (1, "")
    assert f"{SANDBOX}, the last sandbox of {TASK}, is terminated: task completed" in err
