"""Whether a worker may start its agent: only in a wanted sandbox, and only for the current attempt."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from sandherd.contracts.commands import CommandHarness, TaskSpec
from sandherd.contracts.requests import CredentialGrant
from sandherd.contracts.specs import SandboxLimits, SandboxSpec
from sandherd.contracts.states import SandboxState, TaskState
from spawner.sandboxes.credentials import first_grant, may_start, refusal
from spawner.sandboxes.sandbox_record import SandboxRecord, WorkerKey
from spawner.sandboxes.sandbox_transitions import granted
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


class Mint:
    """Issues workers' credentials."""

    def mint_joiner(self, project: str, sandbox: str, life: float, serial: int = 0) -> str:
        raise AssertionError

    def joiner_key(self, project: str, sandbox: str, serial: int) -> str:
        raise AssertionError

    def mint_worker(self, project: str, sandbox: str, public_key: str, life: float) -> tuple[str, datetime]:
        return f"{project} {sandbox} {public_key}", NOW + timedelta(seconds=life)


def granted_to(of: TaskRecord | None = None, *, minutes: float = 60, **changed: object) -> CredentialGrant | None:
    """The first grant for the worker of a warm sandbox, whose key's credential may last this long."""
    key = WorkerKey(public_key="UKEY", expires_at=NOW + timedelta(minutes=minutes))
    warm = sandbox(SandboxState.REQUESTED).model_copy(update={"unit": "wrm-1", "keys": (key,), **changed})
    return first_grant(warm, of, Mint(), NOW)


def test_warm_sandbox_is_granted_a_credential_for_its_key() -> None:
    """The token expires before the recorded time, so that each issued token can be revoked."""
    grant = granted_to(task())
    assert grant is not None
    assert (grant.jwt, grant.may_start) == ("p1 sbx-1 UKEY", True)
    assert grant.expires_at == NOW + timedelta(minutes=60) - timedelta(seconds=1)
    assert granted_to(None, task=None) is not None


@pytest.mark.parametrize(
    "changed",
    [
        {"keys": ()},
        {"unit": None},
        {"state": SandboxState.SPAWNING},
        {"state": SandboxState.STOPPING},
        {"minutes": 10 / 60},
    ],
    ids=["no key", "cold", "created before", "ending", "too late"],
)
def test_other_sandboxes_request_their_credential(changed: dict[str, Any]) -> None:
    """A worker of an older version has no key; for one that may not start the reply states so."""
    assert granted_to(task(), **changed) is None


@pytest.mark.parametrize("of", [None, task(held_by="sbx-2"), task(TaskState.CANCELLED)], ids=["gone", "other", "ended"])
def test_ended_attempt_is_granted_nothing(of: TaskRecord | None) -> None:
    """Its worker requests a credential, and is not admitted."""
    assert granted_to(of) is None


def test_later_credential_of_a_key_does_not_hide_an_earlier_one() -> None:
    """After a spawner with a shorter lifetime of credentials has renewed it, the first token is still revoked."""
    first, renewed = (WorkerKey(public_key="UKEY", expires_at=NOW + timedelta(minutes=ends)) for ends in (60, 5))
    record = granted(granted(sandbox(SandboxState.RUNNING), first, NOW), renewed, NOW)
    assert record.keys == (first,)
