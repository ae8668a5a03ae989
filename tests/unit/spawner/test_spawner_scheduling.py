"""What a sweep finds, and how lists are paged: pure decisions."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandherd.contracts.errors import ContractError
from sandherd.contracts.requests import SandboxView, TaskView
from sandherd.contracts.states import SandboxState, TaskState
from spawner.records.known import Known
from spawner.runtimes.contract import Seen
from spawner.sandboxes.orphans import Waiting
from spawner.sandboxes.sweep import look_over, unsaid
from spawner.tasks.questions import page_of, read_cursor

BEGIN = datetime(2026, 11, 20, tzinfo=UTC)


def task(name: str, age: float = 0, **changes: object) -> TaskView:
    view = TaskView(project="p1", task=name, state=TaskState.PENDING, submitted_at=BEGIN - timedelta(seconds=age))
    return view.model_copy(update=changes)


def sandbox(name: str, state: SandboxState, **changes: object) -> SandboxView:
    view = SandboxView(project="p1", sandbox=name, state=state, runtime="process", requested_at=BEGIN)
    return view.model_copy(update=changes)


def known(view: object, *, unsaid: bool = False) -> Known:  # type: ignore[type-arg]  # any view
    return Known(1, view, unsaid)


def test_a_sweep_finds_what_nobody_leads() -> None:
    """Live sandboxes, ended ones that left something, tasks without a sandbox, orphans, and what is old.

    What was put aside to be tried again keeps its records, and so does a task that another still depends on.
    """
    old = BEGIN - timedelta(days=2)
    tasks = {
        "p1.runs": known(task("runs", state=TaskState.RUNNING, sandbox="sbx-live")),
        "p1.stray": known(task("stray", state=TaskState.RUNNING, sandbox="sbx-gone")),
        "p1.old": known(task("old", state=TaskState.FAILED, sandbox="sbx-old", ended_at=old)),
        "p1.said": known(task("said", state=TaskState.FAILED, ended_at=old), unsaid=True),
        "p1.kept": known(task("kept", state=TaskState.FAILED, sandbox="sbx-kept", ended_at=old)),
        "p1.new": known(task("new", state=TaskState.FAILED, ended_at=BEGIN)),
        "p1.awaited": known(task("awaited", state=TaskState.COMPLETED, ended_at=old)),
        "p1.waits": known(task("waits", depends_on=["awaited"])),
    }
    sandboxes = {
        "p1.sbx-live": known(sandbox("sbx-live", SandboxState.RUNNING)),
        "p1.sbx-left": known(sandbox("sbx-left", SandboxState.TERMINATED, ended_at=old)),
        "p1.sbx-kept": known(sandbox("sbx-kept", SandboxState.TERMINATED, ended_at=old)),
        "p1.sbx-old": known(sandbox("sbx-old", SandboxState.TERMINATED, ended_at=old)),
    }
    present = [Seen(name, alive=False) for name in ("sbx-live", "sbx-left", "sbx-stranger")]
    found = look_over(tasks, sandboxes, present, BEGIN, keep=86_400, kept={"sbx-kept"})
    assert found.wake == {"p1.sbx-live", "p1.sbx-left"}
    assert found.strays == {"p1.stray"}
    assert found.orphans == {"sbx-stranger"}
    assert found.old_tasks == {"p1.old"}
    assert found.old_sandboxes == {"p1.sbx-old"}
    assert unsaid(tasks, sandboxes) == [["p1.said"], []]


def test_an_orphan_has_a_grace_time_that_begins_anew() -> None:
    """It is reported once, removed when its time is up, and forgotten if it is none any more."""
    waiting = Waiting(grace=60)
    assert waiting.update(frozenset({"sbx-a"}), BEGIN) == (["sbx-a"], [])
    assert waiting.update(frozenset({"sbx-a"}), BEGIN + timedelta(seconds=59)) == ([], [])
    assert waiting.update(frozenset({"sbx-a"}), BEGIN + timedelta(seconds=60)) == ([], ["sbx-a"])
    assert waiting.update(frozenset(), BEGIN + timedelta(seconds=61)) == ([], [])
    assert waiting.update(frozenset({"sbx-a"}), BEGIN + timedelta(seconds=62)) == (["sbx-a"], [])


def place(view: TaskView) -> tuple[str, str]:
    return view.submitted_at.isoformat(timespec="microseconds"), view.task


@given(st.lists(st.integers(0, 5), max_size=40), st.integers(1, 7))
def test_pages_show_everything_once_newest_first(ages: list[int], limit: int) -> None:
    """Also where several have the same time."""
    views = [task(f"t{number:03}", age) for number, age in enumerate(ages)]
    shown: list[TaskView] = []
    cursor = None
    while True:
        page, cursor = page_of(map(known, views), place, limit, cursor)
        shown += page
        if cursor is None:
            break
    assert shown == sorted(views, key=place, reverse=True)


def test_heavy_pages_end_early() -> None:
    """A page stays under the broker's limit, and the next begins where it ended."""
    views = [task(f"t{number:03}", text="x" * 100_000) for number in range(20)]
    page, cursor = page_of(map(known, views), place, 20, None)
    assert 1 < len(page) < 20
    assert cursor
    assert page_of(map(known, views), place, 20, cursor)[0][0].task < page[-1].task


@pytest.mark.parametrize("cursor", ["", "x", "~", "2026~", "nonsense~p1.a", "2026-11-20"])
def test_what_was_never_a_cursor_is_refused(cursor: str) -> None:
    """With the field that is wrong."""
    with pytest.raises(ContractError) as refused:
        read_cursor(cursor)
    assert refused.value.problem.field == "cursor"
