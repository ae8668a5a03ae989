"""A task is at work on its branch until its sandbox has ended and the sandbox's last events are handled."""

from datetime import UTC, datetime, timedelta

from sandherd.contracts.requests import SandboxView
from sandherd.contracts.states import SandboxState, TaskState
from spawner.pull_requests.pull_request_steps import task_work
from spawner.repositories.branch_choice import other_task_at_work
from spawner.repositories.branch_record import BranchRecord
from spawner.sandboxes.last_events import SAVED_WITHIN, LastEvents
from spawner.tasks.task_record import TaskFacts

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
KEY = "p1.sbx-1"


def branch() -> BranchRecord:
    return BranchRecord(
        project="p1", id="br-1", life="0" * 32, tasks=("task-1", "task-2"), repository="r", branch="feature/x",
        base="main", base_commit="a" * 40, commit="b" * 40, created_at=NOW, updated_at=NOW,
    )  # fmt: skip


def cancelled(*, saves: bool) -> TaskFacts:
    return TaskFacts(
        project="p1", task="task-1", state=TaskState.CANCELLED, attempt=1, text="x", harness="command",
        runtime="process", sandbox="sbx-1", submitted_at=NOW, priority="normal", depends_on=[], max_attempts=1,
        saves=saves,
    )  # fmt: skip


def sandbox(ended_at: datetime | None) -> SandboxView:
    state = SandboxState.STOPPING if ended_at is None else SandboxState.TERMINATED
    return SandboxView(
        project="p1", sandbox="sbx-1", state=state, task="task-1", runtime="process", requested_at=NOW,
        ended_at=ended_at,
    )  # fmt: skip


def test_cancelled_task_whose_sandbox_may_save_commits_is_at_work() -> None:
    """The next task of the branch waits for these commits, and its pull request is not merged without them."""
    for saves, other in ((True, "task-1"), (False, None)):
        known = {"p1.task-1": cancelled(saves=saves)}
        assert other_task_at_work(branch(), "task-2", known.get) == other
        assert task_work(branch(), known.get).active is saves


async def test_sandbox_saves_until_it_has_ended_and_its_events_are_handled() -> None:
    """As the broker confirms, or for a limited time if it does not; each is reported once."""
    settled, reported = False, list[str]()

    async def is_settled() -> bool:
        return settled

    events = LastEvents(is_settled)
    events.on_handled(reported.append)
    stopping, ended = sandbox(None), sandbox(NOW)
    events.change(KEY, stopping)
    assert await events.check(NOW)
    assert not events.are_handled(KEY, stopping, NOW + 2 * SAVED_WITHIN)
    events.change(KEY, ended)
    assert not await events.check(NOW)
    assert not events.are_handled(KEY, ended, NOW)
    assert events.are_handled(KEY, ended, NOW + SAVED_WITHIN)
    settled = True
    assert await events.check(NOW + timedelta(seconds=1))
    assert events.are_handled(KEY, ended, NOW + timedelta(seconds=1))
    assert events.are_handled(KEY, None, NOW)
    events.change(KEY, ended)
    assert await events.check(NOW + timedelta(seconds=2))
    assert reported == ["p1.task-1"]
