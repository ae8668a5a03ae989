"""Retries of a task, automatic or by a user: the delay, and which events of the old attempt still count."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from sandherd.contracts.attempt_inputs import StoredSession
from sandherd.contracts.commands import CancelTask, CommandHarness, RetryPolicy, RetryTask, SubmitTask, TaskSpec
from sandherd.contracts.envelope import Envelope, wrap
from sandherd.contracts.events import ArtifactRef, EventData
from sandherd.contracts.events.agent import AgentCompleted, AgentFailed, AgentStarted
from sandherd.contracts.failures import TRANSIENT, ErrorType
from sandherd.contracts.specs import SandboxLimits
from sandherd.contracts.states import TaskState, TransitionRefusedError
from sandherd.telemetry.meters import Meters
from spawner.sandboxes.sandbox_record import SandboxRecord
from spawner.task_spans import count
from spawner.tasks import task_transitions as of_task
from spawner.tasks.agent_events import belongs_to, lateness
from spawner.tasks.resolved_task import ResolvedTask
from spawner.tasks.task_record import TaskRecord
from spawner.tasks.task_retry import delay, retry_requested

NOW = datetime(2026, 11, 20, tzinfo=UTC)
TRACE = f"00-{'a' * 32}-{'b' * 16}-01"
PERMANENT = sorted(set(ErrorType) - TRANSIENT)


def after(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


def command_envelope(command: Any, sequence: int = 1) -> Envelope[Any]:
    return wrap(
        command, command.type, source="/sandherd/client/x", sequence=sequence, project="p1", subject="task-1", time=NOW
    )


def pending(terms: ResolvedTask | None = None, **spec: Any) -> TaskRecord:
    wanted = TaskSpec(text="do it", harness=CommandHarness(argv=["true"]), **spec)
    return of_task.submitted(
        command_envelope(SubmitTask(task="task-1", spec=wanted)), NOW, TRACE, terms or ResolvedTask()
    )


def running(task: TaskRecord | None = None, at: datetime = NOW) -> TaskRecord:
    task = task or pending()
    name = f"sbx-{task.attempt}"
    return of_task.running(of_task.assigned(task, name, at), name, at)


def sandbox(attempt: int = 1) -> SandboxRecord:
    return SandboxRecord(
        project="p1", sandbox=f"sbx-{attempt}", task="task-1", attempt=attempt, runtime="process",
        limits=SandboxLimits(), requested_at=NOW,
    )  # fmt: skip


def artifact(of: str = "sbx-1", project: str = "p1") -> ArtifactRef:
    return ArtifactRef(
        artifact="work-1", subject=f"sandherd.v1.artifact.{project}.{of}.work-1", size=7, sha256="a" * 64, chunks=1
    )


def event_envelope(data: EventData, attempt: int = 1) -> Envelope[Any]:
    name = f"sbx-{attempt}"
    return wrap(data, data.type, source=f"/sandherd/sandbox/{name}", sequence=1, project="p1", subject=name, time=NOW)


def events(record: TaskRecord) -> list[dict[str, Any]]:
    return [json.loads(document) for document in record.outbox]


def types(record: TaskRecord) -> list[str]:
    return [event["type"] for event in events(record)]


# --- by itself -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error_type", sorted(TRANSIENT))
def test_temporary_failure_is_retried(error_type: str) -> None:
    """One write schedules the next attempt, which has no sandbox yet, and receives what the last attempt stored."""
    after_it = of_task.attempt_failed(running(), "broke", error_type, NOW)
    assert (after_it.state, after_it.attempt, after_it.sandbox, after_it.error) == (TaskState.PENDING, 2, None, None)
    assert after_it.not_before is not None
    assert after(0.5) <= after_it.not_before <= after(1)
    assert after_it.previous is not None
    assert (after_it.previous.sandbox, after_it.previous.error_type, after_it.previous.attempt) == (
        "sbx-1", error_type, 1,
    )  # fmt: skip
    last = events(after_it)[-1]
    assert (last["type"], last["sandboxid"]) == ("task.retry_scheduled", "sbx-1")
    assert (last["data"]["attempt"], last["data"]["error_type"]) == (1, error_type)
    assert "task.failed" not in types(after_it)


@pytest.mark.parametrize("error_type", [*PERMANENT, "made_up", "worker lost"])
def test_permanent_failure_is_not_retried(error_type: str) -> None:
    """Only the error type decides, never the text of an error. An unknown type is permanent."""
    after_it = of_task.attempt_failed(running(), "the connection was reset, try again", error_type, NOW)
    assert (after_it.state, after_it.attempt, after_it.error_type) == (TaskState.FAILED, 1, error_type)
    assert types(after_it)[-1] == "task.failed"


def test_retry_policy_may_add_error_types() -> None:
    """A program's exit status may be retried, but not an error that no attempt could change."""
    wishes = RetryPolicy(also=frozenset({ErrorType.EXIT_STATUS, ErrorType.TASK_TIMED_OUT}))
    task = running(pending(retry=wishes))
    assert of_task.attempt_failed(task, "status 1", "exit_status", NOW).state is TaskState.PENDING
    assert of_task.attempt_failed(task, "too long", "task_timed_out", NOW).state is TaskState.FAILED


def test_last_attempt_fails_the_task() -> None:
    """After the maximum of attempts the task fails. Only then are its secrets erased."""
    task = pending(ResolvedTask(max_attempts=2), env={"TOKEN": "hunter22"}, secret_env=frozenset({"TOKEN"}))
    second = of_task.attempt_failed(running(task), "with hunter22", "worker_lost", NOW)
    assert second.spec.env["TOKEN"] == "hunter22"
    assert second.previous is not None
    assert "hunter22" not in (second.previous.error or "")
    failed = of_task.attempt_failed(running(second), "gone", "worker_lost", NOW)
    assert (failed.state, failed.attempt, failed.spec.env["TOKEN"]) == (TaskState.FAILED, 2, "")
    assert "hunter22" not in failed.model_dump_json()


@given(st.floats(0, 1e4), st.floats(0, 1e4), st.integers(1, 20), st.text(max_size=8))
def test_delay_doubles_up_to_the_maximum(first: float, longest: float, attempt: int, seed: str) -> None:
    """The delay is reduced by up to a half. The reduction is derived from the task, so it is always the same."""
    retry = RetryPolicy(first_delay_seconds=first, longest_delay_seconds=longest)
    whole = min(longest, first * 2 ** (attempt - 1))
    assert 0.5 * whole <= delay(retry, attempt, seed) <= whole
    assert delay(retry, attempt, seed) == delay(retry, attempt, seed)


def test_simultaneous_failures_are_retried_at_different_times() -> None:
    """The retries of a hundred tasks are spread over half of the delay."""
    delays = sorted(delay(RetryPolicy(first_delay_seconds=100), 1, f"p1/task-{number}/x") for number in range(100))
    assert delays[-1] - delays[0] > 40


# --- old attempts ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "late",
    [
        AgentStarted(sdk="command", task="task-1", timestamp=NOW, task_description_length=5),
        AgentCompleted(turn=1, agent_type="command", final_output="done after all"),
        AgentFailed(turn=1, error="no", error_type="internal"),
    ],
    ids=lambda late: str(late.type),
)
def test_late_event_of_an_old_attempt_changes_nothing(late: EventData) -> None:
    """This holds whether the next attempt waits, runs or has ended."""
    second = of_task.attempt_failed(running(), "lost", "sandbox_lost", NOW)
    third = of_task.attempt_failed(running(second), "lost", "sandbox_lost", NOW)
    for task in (second, running(second), third):
        assert lateness(event_envelope(late), sandbox(1), task) == "old_attempt"
    assert lateness(event_envelope(late, 2), sandbox(2), running(second)) in {None, "repeated"}


def test_attempt_fails_once() -> None:
    """The table of transitions forbids a second end of an attempt. The caller checks the record before."""
    second = of_task.attempt_failed(running(pending(ResolvedTask(max_attempts=1))), "lost", "sandbox_lost", NOW)
    with pytest.raises(TransitionRefusedError):
        of_task.attempt_failed(second, "lost", "sandbox_lost", NOW)


def test_session_of_an_attempt_is_passed_to_the_next() -> None:
    """The last stored session is passed, beside the transcript. A new attempt has no session of its own yet."""
    first, last = (StoredSession(session_id=name, artifact=artifact()) for name in ("s1", "s2"))
    begun = of_task.with_saved_work(
        of_task.with_saved_work(running(), "sbx-1", {"session": first}), "sbx-1", {"session": last}
    )
    second = of_task.attempt_failed(begun, "lost", "worker_lost", NOW)
    assert second.previous is not None
    assert (second.previous.session, second.previous.transcript, second.session) == (last, None, None)
    assert TaskRecord.model_validate_json(second.model_dump_json(exclude_defaults=True)) == second


def test_work_of_an_attempt_is_passed_to_the_next() -> None:
    """Work stored during the attempt or after its failure counts, but not that of an earlier attempt."""
    early = of_task.with_saved_work(running(), "sbx-1", {"work": artifact()})
    second = of_task.attempt_failed(early, "lost", "worker_lost", NOW)
    assert second.previous is not None
    assert second.previous.work == artifact()
    assert (second.work, second.transcript) == (None, None)
    late = of_task.with_saved_work(running(second), "sbx-1", {"transcript": artifact()})
    assert late.previous is not None
    assert (late.previous.work, late.previous.transcript) == (artifact(), artifact())
    assert of_task.with_saved_work(late, "sbx-1", {"transcript": artifact()}) is late
    third = of_task.attempt_failed(late, "lost", "worker_lost", NOW)
    assert of_task.with_saved_work(third, "sbx-1", {"work": artifact("sbx-9")}) is third
    assert TaskRecord.model_validate_json(third.model_dump_json(exclude_defaults=True)) == third


def test_artifact_belongs_to_the_sandbox_in_its_subject() -> None:
    """A worker can't pass files of another sandbox to the next attempt."""
    assert belongs_to(artifact("sbx-1"), sandbox(1))
    assert not belongs_to(artifact("sbx-2"), sandbox(1))
    assert not belongs_to(artifact("sbx-1", project="p2"), sandbox(1))
    assert not belongs_to(artifact().model_copy(update={"subject": "sandherd.v1.event.p1.sbx-1.agent.x"}), sandbox(1))


# --- limits of time --------------------------------------------------------------------------------------------------


def test_attempt_over_its_time_is_retried() -> None:
    """The limit begins at the attempt's assignment, not at the task's submission. An event states the limit."""
    task = running(pending(ResolvedTask(attempt_seconds=60)), after(1000))
    assert of_task.timed_out(task, after(1059)) is task
    assert task.view(whole=False).limit_at == after(1060)
    second = of_task.timed_out(task, after(1060))
    assert (second.state, second.attempt) == (TaskState.PENDING, 2)
    assert types(second)[-2:] == ["task.timed_out", "task.retry_scheduled"]
    assert events(second)[-2]["data"] == {"attempt": 1, "limit_seconds": 60.0, "whole_task": False}
    assert second.view(whole=False).limit_at is None


@pytest.mark.parametrize("runs", [True, False])
def test_task_over_its_time_fails(runs: bool) -> None:
    """The limit of a task includes all waits and attempts."""
    task = pending(ResolvedTask(attempt_seconds=600), task_seconds=100)
    task = running(task, after(50)) if runs else task
    assert of_task.timed_out(task, after(99)) is task
    failed = of_task.timed_out(task, after(100))
    assert (failed.state, failed.error_type) == (TaskState.FAILED, "task_timed_out")
    assert types(failed)[-2:] == ["task.timed_out", "task.failed"]
    assert events(failed)[-2]["data"]["whole_task"] is True
    assert of_task.timed_out(failed, after(1000)) is failed


# --- requested by a user -------------------------------------------------------------------------------------------


def retry_command() -> Envelope[RetryTask]:
    return command_envelope(RetryTask(task="task-1", requested_by="ada"))


@pytest.mark.parametrize("how", ["failed", "cancelled while it waits", "cancelled while it runs"])
def test_ended_task_may_be_retried_by_hand(how: str) -> None:
    """A retry is possible after any error and beyond the maximum of attempts; it begins at once, with a new limit."""
    if how == "failed":
        ended = of_task.attempt_failed(running(pending(ResolvedTask(max_attempts=1))), "no", "exit_status", NOW)
    else:
        task = running() if how.endswith("runs") else pending()
        ended = of_task.cancelled(task, CancelTask(task="task-1"), NOW)
    again = retry_requested(ended, retry_command(), after(500))
    assert (again.state, again.attempt, again.not_before) == (TaskState.PENDING, 2, after(500))
    assert again.max_attempts == max(ended.max_attempts, 2)
    assert (again.ended_at, again.error_type, again.sandbox, again.limited_from) == (None, None, None, after(500))
    last = events(again)[-1]["data"]
    assert (last["requested_by"], last["attempt"]) == ("ada", 1)
    assert (again.previous is None) == (how == "cancelled while it waits")


def test_repeated_retry_request_changes_nothing() -> None:
    """A command that is delivered twice has one effect, even if the attempt has failed in between."""
    command = retry_command()
    ended = of_task.failed(running(), "no", "exit_status", NOW)
    again = retry_requested(ended, command, NOW)
    assert retry_requested(again, command, NOW) is again
    failed = of_task.failed(running(again), "no", "exit_status", NOW)
    assert retry_requested(failed, command, NOW) is failed
    assert retry_requested(failed, retry_command(), NOW).attempt == 3


def test_each_attempt_is_counted_once_by_outcome() -> None:
    """The write that ends the attempt counts it. An unknown error type is not used as a label."""
    registry = CollectorRegistry()
    meters = Meters(registry)
    first = running(pending(ResolvedTask(max_attempts=2)))
    second = of_task.attempt_failed(first, "gone", "worker_lost", NOW)
    failed = of_task.attempt_failed(running(second), "gone", "worker_lost", NOW)
    for before, after_it in ((first, second), (second, running(second)), (running(second), failed), (failed, failed)):
        count(meters, lambda: NOW, before, after_it)
    count(meters, lambda: NOW, failed, retry_requested(failed, retry_command(), NOW))
    assert registry.get_sample_value("sandherd_attempts_total", {"outcome": "retried"}) == 1
    assert registry.get_sample_value("sandherd_attempts_total", {"outcome": "failed"}) == 1
    assert registry.get_sample_value("sandherd_retries_total", {"error_type": "worker_lost"}) == 1
