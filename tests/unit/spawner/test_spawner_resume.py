"""Whether a task may resume the session that it names, decided by records and project."""

from datetime import UTC, datetime
from typing import Any

import pytest

from sandherd.contracts.commands import CancelTask, SubmitTask, TaskSpec
from sandherd.contracts.envelope import parse, wrap
from sandherd.contracts.events import ArtifactRef
from sandherd.contracts.events.agent import AgentCompleted
from sandherd.contracts.events.task import TaskSubmitted
from sandherd.contracts.resume import Resume
from sandherd.contracts.specs import SandboxLimits
from sandherd.contracts.states import SandboxState
from sandherd.contracts.subjects import ARTIFACT
from spawner.access.file_chunks import may_fetch
from spawner.sandboxes import sandbox_transitions as of_sandbox
from spawner.sandboxes.sandbox_record import SandboxRecord
from spawner.tasks import task_transitions as of_task
from spawner.tasks.resume_rules import refusal
from spawner.tasks.task_record import TaskRecord
from spawner.tasks.task_retry import retry_scheduled

NOW = datetime(2026, 11, 20, tzinfo=UTC)
TRACE = f"00-{'a' * 32}-{'b' * 16}-01"


def task(name: str = "task-1", **spec: Any) -> TaskRecord:
    wanted = TaskSpec.model_validate({"text": "do it", "harness": {"kind": "claude"}, **spec})
    command = wrap(
        SubmitTask(task=name, spec=wanted), SubmitTask.type, source="/sandherd/client/x", sequence=1, project="p1",
        subject=name, time=NOW,
    )  # fmt: skip
    return of_task.submitted(command, NOW, TRACE)


def running(record: TaskRecord) -> TaskRecord:
    return of_task.running(of_task.assigned(record, "sbx-1", NOW), "sbx-1", NOW)


def completed(record: TaskRecord) -> TaskRecord:
    return of_task.ended(running(record), "sbx-1", AgentCompleted(), NOW)


def sandbox(state: SandboxState = SandboxState.RUNNING, of: str = "task-1") -> SandboxRecord:
    return SandboxRecord(
        project="p1", sandbox="sbx-1", task=of, runtime="process", limits=SandboxLimits(), requested_at=NOW, state=state
    )


def artifact(project: str = "p1", of: str = "sbx-1", name: str = "art-1", named: str = "art-1") -> ArtifactRef:
    subject = f"{ARTIFACT.fill(project=project, sandbox=of, artifact='x').removesuffix('x')}{named}"
    return ArtifactRef(artifact=name, subject=subject, size=1, sha256="0" * 64, chunks=1)


def resume(**over: Any) -> Resume:
    known = {"task": "task-1", "attempt": 1, "sandbox": "sbx-1", "harness": "claude", "session_id": "s-1"}
    return Resume.model_validate({**known, "transcript": artifact(), **over})


@pytest.mark.parametrize("fork", [False, True])
def test_ended_task_is_resumable_without_its_records(fork: bool) -> None:
    """A task is resumable with both records, one or none: a record that was cleared ended long ago."""
    ended, gone = completed(task()), sandbox(SandboxState.TERMINATED)
    for left in ((ended, gone), (ended, None), (None, gone), (None, None)):
        assert refusal("p1", resume(fork=fork, work=artifact()), *left) is None
    cancelled = of_task.cancelled(task(), CancelTask(task="task-1"), NOW)
    assert refusal("p1", resume(fork=fork), cancelled, None) is None


@pytest.mark.parametrize("at_work", [task(), running(task())])
def test_running_task_may_only_be_forked(at_work: TaskRecord) -> None:
    """Otherwise the session would continue in two places. The refusal names the task and the field."""
    refused = refusal("p1", resume(), at_work, sandbox())
    assert refused is not None
    assert (refused.field, "task-1 has not ended" in refused.reason) == ("spec.resume", True)
    assert refusal("p1", resume(fork=True), at_work, sandbox()) is None


@pytest.mark.parametrize(("linger", "state", "resumable"), [
    (60, SandboxState.RUNNING, False),
    (60, SandboxState.PAUSED, False),
    (60, SandboxState.STOPPING, True),
    (60, SandboxState.TERMINATED, True),
    (0, SandboxState.RUNNING, True),
])  # fmt: skip
def test_lingering_agent_counts_as_running(linger: int, state: SandboxState, resumable: bool) -> None:
    """The session of an ended task can't be resumed while its sandbox lingers. It can once the sandbox is ending."""
    refused = refusal("p1", resume(), completed(task(linger_seconds=linger)), sandbox(state))
    assert (refused is None) is resumable
    assert refused is None or "sbx-1" in refused.reason


@pytest.mark.parametrize("part", ["transcript", "work"])
@pytest.mark.parametrize("fork", [False, True])
@pytest.mark.parametrize("lies", [
    artifact(project="p2"), artifact(of="sbx-2"), artifact(name="art-2"), artifact(named="*"), artifact(named=">"),
    *(artifact(name=name, named=name) for name in ("*", ">", "a.b", "../x", "", "a\n", "a\0", "A", "a" * 64)),
])  # fmt: skip
def test_resume_of_foreign_artifacts_is_refused(part: str, fork: bool, lies: ArtifactRef) -> None:
    """An artifact of another project or sandbox, or with an invalid name, is refused whatever the client states."""
    refused = refusal("p1", resume(**{part: lies}, fork=fork), None, None)
    assert refused is not None
    assert refused.field == "spec.resume"


def test_sandbox_is_not_passed_off_as_another_tasks() -> None:
    """A sandbox whose record names another task is refused."""
    refused = refusal("p1", resume(fork=True), None, sandbox(SandboxState.TERMINATED, of="task-2"))
    assert refused is not None
    assert "does not belong to task task-1" in refused.reason


def test_sandbox_may_fetch_the_uploads_of_its_own_task_only() -> None:
    """A sandbox without a task may fetch no uploads."""
    made = of_sandbox.requested(task("task-2"), "sbx-2", NOW)
    assert [may_fetch(made, owner) for owner in ("task-2", "task-1", "task-20")] == [True, False, False]
    assert not may_fetch(made.model_copy(update={"task": None}), "task-2")


def test_each_attempt_may_fetch_the_artifacts_of_its_resume() -> None:
    """All attempts may fetch them; a task without a resume names no sandbox."""
    first = task("task-2", resume=resume().model_dump())
    made = of_sandbox.requested(first, "sbx-2", NOW)
    assert [may_fetch(made, owner) for owner in ("sbx-1", "sbx-2", "sbx-3")] == [True, True, False]
    second = retry_scheduled(of_task.assigned(first, "sbx-2", NOW), "lost", "worker_lost", NOW)
    made = of_sandbox.requested(second, "sbx-3", NOW)
    assert [may_fetch(made, owner) for owner in ("sbx-1", "sbx-2", "sbx-4")] == [True, True, False]
    assert of_sandbox.requested(task(), "sbx-4", NOW).resumes is None


def test_submitted_event_names_the_resumed_task() -> None:
    """The event has the earlier task's name."""
    outbox = task("task-2", resume=resume().model_dump()).outbox
    submitted_data = [parse(document.encode(), TaskSubmitted).data for document in outbox]
    assert [one.resumes for one in submitted_data if isinstance(one, TaskSubmitted)] == ["task-1"]
