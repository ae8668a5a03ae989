"""Trying a task again: by itself or because somebody asks, how much later, and what of the old attempt still counts."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from sandherd.contracts.commands import CancelTask, CommandHarness, Retry, RetryTask, SubmitTask, TaskSpec
from sandherd.contracts.envelope import Envelope, wrap
from sandherd.contracts.events import ArtifactRef, EventData
from sandherd.contracts.events.agent import AgentCompleted, AgentFailed, AgentStarted
from sandherd.contracts.failures import TRANSIENT, ErrorType
from sandherd.contracts.offers import KeptSession
from sandherd.contracts.specs import Limits
from sandherd.contracts.states import TaskState, TransitionRefusedError
from sandherd.telemetry.meters import Meters
from spawner.sandboxes.record import SandboxRecord
from spawner.tasks import decisions as of_task
from spawner.tasks.agents import lateness, lies_with
from spawner.tasks.counting import count
from spawner.tasks.record import TaskRecord
from spawner.tasks.retry import asked_again, delay
from spawner.tasks.terms import Terms

NOW = datetime(2026, 11, 20, tzinfo=UTC)
TRACE = f"00-{'a' * 32}-{'b' * 16}-01"
PERMANENT = sorted(set(ErrorType) - TRANSIENT)


def after(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


def said(command: Any, sequence: int = 1) -> Envelope[Any]:
    return wrap(
        command, command.type, source="/sandherd/client/x", sequence=sequence, project="p1", subject="task-1", time=NOW
    )


def pending(terms: Terms | None = None, **spec: Any) -> TaskRecord:
    wanted = TaskSpec(text="do it", harness=CommandHarness(argv=["true"]), **spec)
    return of_task.submitted(said(SubmitTask(task="task-1", spec=wanted)), NOW, TRACE, terms or Terms())


def running(task: TaskRecord | None = None, at: datetime = NOW) -> TaskRecord:
    task = task or pending()
    name = f"sbx-{task.attempt}"
    return of_task.running(of_task.assigned(task, name, at), name, at)


def sandbox(attempt: int = 1) -> SandboxRecord:
    return SandboxRecord(
        project="p1", sandbox=f"sbx-{attempt}", task="task-1", attempt=attempt, runtime="process", limits=Limits(),
        requested_at=NOW,
    )  # fmt: skip


def artifact(of: str = "sbx-1", project: str = "p1") -> ArtifactRef:
    return ArtifactRef(
        artifact="work-1", subject=f"sandherd.v1.artifact.{project}.{of}.work-1", size=7, sha256="a" * 64, chunks=1
    )


def heard(data: EventData, attempt: int = 1) -> Envelope[Any]:
    name = f"sbx-{attempt}"
    return wrap(data, data.type, source=f"/sandherd/sandbox/{name}", sequence=1, project="p1", subject=name, time=NOW)


def events(record: TaskRecord) -> list[dict[str, Any]]:
    return [json.loads(document) for document in record.outbox]


def types(record: TaskRecord) -> list[str]:
    return [event["type"] for event in events(record)]


# --- by itself -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error_type", sorted(TRANSIENT))
def test_what_may_pass_is_tried_again(error_type: str) -> None:
    """In one write: the next attempt waits, without a sandbox, and knows what the last one left."""
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
def test_what_is_permanent_is_not(error_type: str) -> None:
    """Decided by the word of our own, never by a text; a word that is not ours is permanent."""
    after_it = of_task.attempt_failed(running(), "the connection was reset, try again", error_type, NOW)
    assert (after_it.state, after_it.attempt, after_it.error_type) == (TaskState.FAILED, 1, error_type)
    assert types(after_it)[-1] == "task.failed"


def test_a_task_may_wish_for_more_to_be_tried_again() -> None:
    """As a program that ends with an error; but not for what no attempt could mend."""
    wishes = Retry(also=frozenset({ErrorType.EXIT_STATUS, ErrorType.TASK_TIMED_OUT}))
    task = running(pending(retry=wishes))
    assert of_task.attempt_failed(task, "status 1", "exit_status", NOW).state is TaskState.PENDING
    assert of_task.attempt_failed(task, "too long", "task_timed_out", NOW).state is TaskState.FAILED


def test_the_last_attempt_is_the_last() -> None:
    """As many as it was given, then it has failed, and only then its secrets are forgotten."""
    task = pending(Terms(max_attempts=2), env={"TOKEN": "hunter22"}, secret_env=frozenset({"TOKEN"}))
    second = of_task.attempt_failed(running(task), "with hunter22", "worker_lost", NOW)
    assert second.spec.env["TOKEN"] == "hunter22"
    assert second.previous is not None
    assert "hunter22" not in (second.previous.error or "")
    failed = of_task.attempt_failed(running(second), "gone", "worker_lost", NOW)
    assert (failed.state, failed.attempt, failed.spec.env["TOKEN"]) == (TaskState.FAILED, 2, "")
    assert "hunter22" not in failed.model_dump_json()


@given(st.floats(0, 1e4), st.floats(0, 1e4), st.integers(1, 20), st.text(max_size=8))
def test_the_delay_doubles_up_to_the_longest(first: float, longest: float, attempt: int, seed: str) -> None:
    """Less by up to a half, drawn from what it is for: the same however often it is asked."""
    retry = Retry(first_delay_seconds=first, longest_delay_seconds=longest)
    whole = min(longest, first * 2 ** (attempt - 1))
    assert 0.5 * whole <= delay(retry, attempt, seed) <= whole
    assert delay(retry, attempt, seed) == delay(retry, attempt, seed)


def test_tasks_that_failed_together_do_not_come_back_together() -> None:
    """A hundred of them spread over half of the delay."""
    delays = sorted(delay(Retry(first_delay_seconds=100), 1, f"p1/task-{number}/x") for number in range(100))
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
def test_a_late_event_of_an_old_attempt_changes_nothing(late: EventData) -> None:
    """While the next one waits, while it runs, and after the end."""
    second = of_task.attempt_failed(running(), "lost", "sandbox_lost", NOW)
    third = of_task.attempt_failed(running(second), "lost", "sandbox_lost", NOW)
    for task in (second, running(second), third):
        assert lateness(heard(late), sandbox(1), task) == "old_attempt"
    assert lateness(heard(late, 2), sandbox(2), running(second)) in {None, "repeated"}


def test_an_attempt_fails_once() -> None:
    """The table forbids the second verdict; whoever decides looks at the record first."""
    second = of_task.attempt_failed(running(pending(Terms(max_attempts=1))), "lost", "sandbox_lost", NOW)
    with pytest.raises(TransitionRefusedError):
        of_task.attempt_failed(second, "lost", "sandbox_lost", NOW)


def test_the_session_of_an_attempt_is_kept_for_the_next() -> None:
    """The last that it has put by, beside what its terminal showed; a new attempt has none of its own yet."""
    first, last = (KeptSession(session_id=name, artifact=artifact()) for name in ("s1", "s2"))
    begun = of_task.left(of_task.left(running(), "sbx-1", {"session": first}), "sbx-1", {"session": last})
    second = of_task.attempt_failed(begun, "lost", "worker_lost", NOW)
    assert second.previous is not None
    assert (second.previous.session, second.previous.transcript, second.session) == (last, None, None)
    assert TaskRecord.model_validate_json(second.model_dump_json(exclude_defaults=True)) == second


def test_what_an_attempt_puts_by_is_kept_for_the_next() -> None:
    """While it runs, and also when it comes after its failure; but not from an attempt before the last."""
    early = of_task.left(running(), "sbx-1", {"work": artifact()})
    second = of_task.attempt_failed(early, "lost", "worker_lost", NOW)
    assert second.previous is not None
    assert second.previous.work == artifact()
    assert (second.work, second.transcript) == (None, None)
    late = of_task.left(running(second), "sbx-1", {"transcript": artifact()})
    assert late.previous is not None
    assert (late.previous.work, late.previous.transcript) == (artifact(), artifact())
    assert of_task.left(late, "sbx-1", {"transcript": artifact()}) is late
    third = of_task.attempt_failed(late, "lost", "worker_lost", NOW)
    assert of_task.left(third, "sbx-1", {"work": artifact("sbx-9")}) is third
    assert TaskRecord.model_validate_json(third.model_dump_json(exclude_defaults=True)) == third


def test_only_what_lies_with_the_sandbox_itself_is_its_own() -> None:
    """A worker can't have another sandbox's files handed to the next attempt."""
    assert lies_with(artifact("sbx-1"), sandbox(1))
    assert not lies_with(artifact("sbx-2"), sandbox(1))
    assert not lies_with(artifact("sbx-1", project="p2"), sandbox(1))
    assert not lies_with(artifact().model_copy(update={"subject": "sandherd.v1.event.p1.sbx-1.agent.x"}), sandbox(1))


# --- limits of time --------------------------------------------------------------------------------------------------


def test_an_attempt_that_takes_too_long_is_tried_again() -> None:
    """Counted from its own assignment, not from the task's submission; and said so."""
    task = running(pending(Terms(attempt_seconds=60)), after(1000))
    assert of_task.timed_out(task, after(1059)) is task
    assert task.view(whole=False).limit_at == after(1060)
    second = of_task.timed_out(task, after(1060))
    assert (second.state, second.attempt) == (TaskState.PENDING, 2)
    assert types(second)[-2:] == ["task.timed_out", "task.retry_scheduled"]
    assert events(second)[-2]["data"] == {"attempt": 1, "limit_seconds": 60.0, "whole_task": False}
    assert second.view(whole=False).limit_at is None


@pytest.mark.parametrize("runs", [True, False])
def test_a_task_that_takes_too_long_has_failed(runs: bool) -> None:
    """With all its waits and attempts, also while it waits."""
    task = pending(Terms(attempt_seconds=600), task_seconds=100)
    task = running(task, after(50)) if runs else task
    assert of_task.timed_out(task, after(99)) is task
    failed = of_task.timed_out(task, after(100))
    assert (failed.state, failed.error_type) == (TaskState.FAILED, "task_timed_out")
    assert types(failed)[-2:] == ["task.timed_out", "task.failed"]
    assert events(failed)[-2]["data"]["whole_task"] is True
    assert of_task.timed_out(failed, after(1000)) is failed


# --- because somebody asks -------------------------------------------------------------------------------------------


def retry_command() -> Envelope[RetryTask]:
    return said(RetryTask(task="task-1", requested_by="ada"))


@pytest.mark.parametrize("how", ["failed", "cancelled while it waits", "cancelled while it runs"])
def test_a_person_may_have_an_ended_task_tried_again(how: str) -> None:
    """Whatever its error was, and once more than it was given; at once, and its time begins anew."""
    if how == "failed":
        ended = of_task.attempt_failed(running(pending(Terms(max_attempts=1))), "no", "exit_status", NOW)
    else:
        task = running() if how.endswith("runs") else pending()
        ended = of_task.cancelled(task, CancelTask(task="task-1"), NOW)
    again = asked_again(ended, retry_command(), after(500))
    assert (again.state, again.attempt, again.not_before) == (TaskState.PENDING, 2, after(500))
    assert again.max_attempts == max(ended.max_attempts, 2)
    assert (again.ended_at, again.error_type, again.sandbox, again.limited_from) == (None, None, None, after(500))
    last = events(again)[-1]["data"]
    assert (last["requested_by"], last["attempt"]) == ("ada", 1)
    assert (again.previous is None) == (how == "cancelled while it waits")


def test_the_same_request_again_changes_nothing() -> None:
    """Also if the attempt has failed in between: a command that is told twice is one."""
    command = retry_command()
    ended = of_task.failed(running(), "no", "exit_status", NOW)
    again = asked_again(ended, command, NOW)
    assert asked_again(again, command, NOW) is again
    failed = of_task.failed(running(again), "no", "exit_status", NOW)
    assert asked_again(failed, command, NOW) is failed
    assert asked_again(failed, retry_command(), NOW).attempt == 3


def test_each_attempt_is_counted_once_by_what_came_of_it() -> None:
    """At the write that decides it; a word that is not of ours is no label."""
    registry = CollectorRegistry()
    meters = Meters(registry)
    first = running(pending(Terms(max_attempts=2)))
    second = of_task.attempt_failed(first, "gone", "worker_lost", NOW)
    failed = of_task.attempt_failed(running(second), "gone", "worker_lost", NOW)
    for before, after_it in ((first, second), (second, running(second)), (running(second), failed), (failed, failed)):
        count(meters, lambda: NOW, before, after_it)
    count(meters, lambda: NOW, failed, asked_again(failed, retry_command(), NOW))
    assert registry.get_sample_value("sandherd_attempts_total", {"outcome": "retried"}) == 1
    assert registry.get_sample_value("sandherd_attempts_total", {"outcome": "failed"}) == 1
    assert registry.get_sample_value("sandherd_retries_total", {"error_type": "worker_lost"}) == 1
