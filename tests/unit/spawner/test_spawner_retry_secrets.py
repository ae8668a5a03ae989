"""A retry by a user: which secrets and files are still stored, and which have to be sent again."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from sandherd.contracts.commands import CommandHarness, RetryTask, SubmitTask, TaskSpec
from sandherd.contracts.envelope import Envelope, wrap
from sandherd.contracts.events.agent import AgentCompleted
from spawner.tasks import task_transitions as of_task
from spawner.tasks.resolved_task import ResolvedTask
from spawner.tasks.task_record import TaskRecord
from spawner.tasks.task_retry import retry_refusal, retry_requested
from spawner.tasks.task_secrets import as_submitted

NOW = datetime(2026, 11, 20, tzinfo=UTC)
TRACE = f"00-{'a' * 32}-{'b' * 16}-01"


def after(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


def command_envelope(command: Any) -> Envelope[Any]:
    return wrap(
        command, command.type, source="/sandherd/client/x", sequence=1, project="p1", subject="task-1", time=NOW
    )


def pending(terms: ResolvedTask | None = None, **spec: Any) -> TaskRecord:
    wanted = TaskSpec(**{"text": "do it", "harness": CommandHarness(argv=["true"]), **spec})
    return of_task.submitted(
        command_envelope(SubmitTask(task="task-1", spec=wanted)), NOW, TRACE, terms or ResolvedTask()
    )


def running(task: TaskRecord) -> TaskRecord:
    return of_task.running(of_task.assigned(task, "sbx-1", NOW), "sbx-1", NOW)


def retry_command() -> Envelope[RetryTask]:
    return command_envelope(RetryTask(task="task-1", requested_by="ada"))


def secret_task(**spec: Any) -> TaskRecord:
    return pending(env={"A": "the value"}, secret_env=frozenset({"A"}), **spec)


def test_refused_retry_states_the_reason() -> None:
    """A running task, a completed one and one whose secrets are erased are refused, with the field to change."""
    for task, field, why in (
        (pending(), "task", "is pending"),
        (running(pending()), "task", "is running"),
        (
            of_task.ended(running(pending()), "sbx-1", AgentCompleted(turn=1, agent_type="command"), NOW),
            "task",
            "is completed",
        ),
        (of_task.failed(secret_task(), "no", "start", NOW), "spec.secret_env", "give A again"),
    ):
        refused = retry_refusal(task, NOW)
        assert refused is not None
        assert why in refused.reason
        assert refused.field == field
        assert retry_requested(task, retry_command(), NOW) is task


def test_files_of_a_failed_task_remain_for_its_retry() -> None:
    """The files remain for any number of retries. A task that version 0.1 ended has none, and the refusal states it."""
    task = pending(files={"a.txt": "b"})
    for attempt in (2, 3):
        task = retry_requested(of_task.failed(stored(task), "no", "start", NOW), retry_command(), NOW)
        assert (task.attempt, task.spec.files, task.erased) == (attempt, {"a.txt": "b"}, None)
    old = of_task.failed(task, "no", "start", NOW).model_copy(update={"erased": None})
    refused = retry_refusal(old, NOW)
    assert refused is not None
    assert (refused.field, "submit it under another name" in refused.reason) == ("spec.files", True)


def stored(record: TaskRecord) -> TaskRecord:
    return TaskRecord.model_validate_json(record.model_dump_json(exclude_defaults=True))


@pytest.mark.parametrize("keep", [0, 60])
def test_retry_needs_new_values_of_erased_secrets_only(keep: float) -> None:
    """The retry needs all erased values, and no others. Files without a secret are unchanged."""
    task = pending(
        ResolvedTask(keep_secrets=keep),
        env={"A": "the value", "B": "other"},
        secret_env=frozenset({"A", "B"}),
        files={"f": "x"},
    )
    ended = of_task.failed(task, "no", "start", NOW)
    assert (retry_refusal(ended, NOW) is None) == bool(keep)
    if keep:
        replaced = retry_requested(ended, retry_command(), NOW, {"A": "new"})
        assert replaced.spec.env == {"A": "new", "B": "other"}
    ended = stored(of_task.secrets_expired(ended, after(keep)))
    assert ended.spec.env == {"A": "", "B": ""}
    for given in ({}, {"A": "new"}, {"A": "new", "B": "new", "C": "new"}):
        refused = retry_refusal(ended, after(keep), given)
        assert refused is not None
        assert refused.field == "spec.secret_env"
    again = retry_requested(ended, retry_command(), after(keep), {"A": "new", "B": "newer"})
    assert again.spec == task.spec.model_copy(update={"env": {"A": "new", "B": "newer"}})


@pytest.mark.parametrize("field", ["text", "files", "env", "harness"])
def test_task_with_a_redacted_value_is_not_rerun(field: str) -> None:
    """A task is run as it was submitted or not at all: with `[redacted]` in a text it would be a different task."""
    specs: dict[str, dict[str, Any]] = {
        "text": {"text": "use the value"},
        "files": {"files": {"f": "is the value", "g": "is not"}},
        "env": {"env": {"A": "the value", "URL": "http://the value"}},
        "harness": {"harness": CommandHarness(argv=["curl", "the value"])},
    }
    given = {"text": "do it", "harness": CommandHarness(argv=["true"]), "env": {"A": "the value"}}
    whole: dict[str, Any] = {**given, **specs[field]}
    wanted = TaskSpec(**whole, secret_env=frozenset({"A"}))
    task = of_task.submitted(
        command_envelope(SubmitTask(task="task-1", spec=wanted)), NOW, TRACE, ResolvedTask(keep_secrets=60)
    )
    ended = of_task.failed(task, "no", "start", NOW)
    assert retry_requested(ended, retry_command(), NOW).spec == wanted
    expired = stored(of_task.secrets_expired(ended, after(60)))
    assert "the value" not in expired.model_dump_json()
    refused = retry_refusal(expired, after(60), {"A": "the value"})
    assert refused is not None
    assert refused.field == f"spec.{field}"
    unreadable = stored(ended.without_secret_part().model_copy(update={"sealed": "00"}))
    assert getattr(retry_refusal(unreadable, NOW, {"A": "the value"}), "field", None) == f"spec.{field}"


def test_submitted_spec_has_no_secret_value() -> None:
    """A user who submits a task again gets its names and files, but no value of a secret and no file that has one."""
    task = secret_task(files={"a.txt": "plain", "b.txt": "has the value"}, secrets={"TOKEN": "forge-token"})
    shown = as_submitted(task.spec)
    assert (shown.env, shown.files, shown.secrets) == (
        {"A": ""}, {"a.txt": "plain", "b.txt": ""}, {"TOKEN": "forge-token"},
    )  # fmt: skip
    assert "the value" not in shown.model_dump_json()
