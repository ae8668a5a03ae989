"""Records and events of an ended sandbox and task."""

import json
from collections.abc import Callable
from datetime import UTC, datetime

import pytest

from sandherd.contracts.commands import CancelTask, CommandHarness, SandboxLimits, SubmitTask, TaskSpec
from sandherd.contracts.envelope import Envelope, wrap
from sandherd.contracts.events.agent import AgentCompleted
from sandherd.contracts.states import SandboxState
from spawner.sandboxes import sandbox_transitions as of_sandbox
from spawner.sandboxes.sandbox_record import SandboxRecord
from spawner.tasks import task_transitions as of_task
from spawner.tasks.task_record import TaskRecord

NOW = datetime(2026, 11, 20, tzinfo=UTC)
SECRET = "correct-horse-battery"
SHORT = "k3yz"


def submission(**changes: object) -> Envelope[SubmitTask]:
    given = {
        "text": f"use {SECRET} now and {SHORT * 3}",
        "harness": CommandHarness(argv=["curl", f"-Htoken:{SECRET}"]),
        "env": {"TOKEN": SECRET, "PIN": SHORT, "URL": f"http://h/?t={SECRET}", "LEVEL": "info"},
        "secret_env": frozenset({"TOKEN", "PIN"}),
        "continuous": {"validation": {"command": f"check {SECRET}"}, "completion_signal": SHORT},
        "files": {"key.txt": f"{SECRET} in a file"},
    }
    spec = TaskSpec(**{**given, **changes})  # type: ignore[arg-type]  # fields by name
    return wrap(
        SubmitTask(task="task-1", spec=spec), SubmitTask.type, source="/sandherd/client/x", sequence=1, project="p1",
        subject="task-1", time=NOW,
    )  # fmt: skip


def running(command: Envelope[SubmitTask]) -> TaskRecord:
    record = of_task.submitted(command, NOW, f"00-{'a' * 32}-{'b' * 16}-01")
    return of_task.running(of_task.assigned(record, "sbx-1", NOW), "sbx-1", NOW)


def completed(record: TaskRecord) -> TaskRecord:
    outcome = AgentCompleted(turn=1, agent_type="command", final_output=f"it is {SECRET}")
    return of_task.ended(record, "sbx-1", outcome, NOW)


def failed(record: TaskRecord) -> TaskRecord:
    return of_task.failed(record, f"no {SECRET}", "internal", NOW)


def cancelled(record: TaskRecord) -> TaskRecord:
    return of_task.cancelled(record, CancelTask(task="task-1", reason=f"{SECRET} leaked"), NOW)


@pytest.mark.parametrize("end", [completed, failed, cancelled])
def test_secret_is_never_shown_and_erased_at_the_end(end: Callable[[TaskRecord], TaskRecord]) -> None:
    """Before the end a secret is in no event and no view; after it, not in the record either."""
    before = running(submission())
    assert before.spec.env["TOKEN"] == SECRET
    assert before.view(whole=True).text == "use [redacted] now and [red[red[red"
    after = end(before)
    for document in (*after.outbox, after.model_dump_json(), before.view(whole=True).model_dump_json()):
        assert SECRET not in document
        assert SHORT not in document
    assert "in a file" not in after.model_dump_json()
    assert (after.spec.env["LEVEL"], after.spec.env["TOKEN"]) == ("info", "")
    assert TaskRecord.model_validate_json(after.model_dump_json(exclude_defaults=True)) == after


def test_longest_text_full_of_secrets_stays_readable() -> None:
    """A mark is not longer than the secret that it replaces: otherwise the text could exceed its maximum."""
    after = failed(running(submission(text=SHORT * (16 * 1024))))
    assert TaskRecord.model_validate_json(after.model_dump_json()) == after


def test_repeated_command_is_the_same_task_after_its_end() -> None:
    """The identical command always is. Another one is the same only if nothing was erased, so that it is comparable."""
    command = submission()
    after = completed(running(command))
    assert of_task.same_task(after, command)
    assert not of_task.same_task(after, submission())
    assert not of_task.same_task(after, submission(files={}, env={}, secret_env=frozenset()))
    plain: dict[str, object] = {"files": {}, "env": {}, "secret_env": frozenset()}
    assert of_task.same_task(completed(running(submission(**plain))), submission(**plain))
    assert not of_task.same_task(completed(running(submission(**plain))), submission(**plain, text="another"))


@pytest.mark.parametrize("unsaid", [True, False])
def test_end_of_sandbox_states_unpublished_events(unsaid: bool) -> None:
    """Only by this event the history knows that events were not published."""
    record = SandboxRecord(
        project="p1", sandbox="sbx-1", task="task-1", runtime="process", limits=SandboxLimits(), requested_at=NOW,
        state=SandboxState.STOPPING,
    )  # fmt: skip
    ended = of_sandbox.terminated(record, unsaid=unsaid, now=NOW)
    assert json.loads(ended.outbox[-1])["data"]["unsaid"] is unsaid
