"""Findings of a sweep, and pages of lists: pure decisions."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandherd.contracts.errors import ContractError
from sandherd.contracts.requests import ListLiveSandboxes, ListLiveTasks, SandboxView, TaskView
from sandherd.contracts.states import SandboxState, TaskState
from sandherd.service.cursors import write_cursor
from spawner.records.base_record import IndexEntry
from spawner.runtimes.contract import ObservedSandbox
from spawner.sandboxes.orphans import OrphanSightings
from spawner.sandboxes.sweep import compare_records, unpublished
from spawner.tasks.live_queries import is_wanted_task, page_of, parse_cursor

BEGIN = datetime(2026, 11, 20, tzinfo=UTC)


def task(name: str, age: float = 0, **changes: object) -> TaskView:
    view = TaskView(project="p1", task=name, state=TaskState.PENDING, submitted_at=BEGIN - timedelta(seconds=age))
    return view.model_copy(update=changes)


def sandbox(name: str, state: SandboxState, **changes: object) -> SandboxView:
    view = SandboxView(project="p1", sandbox=name, state=state, runtime="process", requested_at=BEGIN)
    return view.model_copy(update=changes)


def known(view: object, *, unsaid: bool = False) -> IndexEntry:  # type: ignore[type-arg]  # any view
    return IndexEntry(1, view, unsaid)


def test_sweep_finds_records_without_an_owner() -> None:
    """Live sandboxes, ended ones with data, tasks without a sandbox, orphans and old records are found.

    A quarantined sandbox retains its records, and so does a task that another still depends on.
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
    present = [ObservedSandbox(name, alive=False) for name in ("sbx-live", "sbx-left", "sbx-stranger")]
    found = compare_records(tasks, sandboxes, present, BEGIN, keep=86_400, quarantined={"sbx-kept"})
    assert found.wake == {"p1.sbx-live", "p1.sbx-left"}
    assert found.strays == {"p1.stray"}
    assert found.orphans == {"sbx-stranger"}
    assert found.old_tasks == {"p1.old"}
    assert found.old_sandboxes == {"p1.sbx-old"}
    assert unpublished(tasks, sandboxes) == [["p1.said"], []]


def test_orphan_has_a_grace_time_that_restarts() -> None:
    """An orphan is reported once, removed after its time, and dropped if it is none any more."""
    waiting = OrphanSightings(grace=60)
    assert waiting.update(frozenset({"sbx-a"}), BEGIN) == (["sbx-a"], [])
    assert waiting.update(frozenset({"sbx-a"}), BEGIN + timedelta(seconds=59)) == ([], [])
    assert waiting.update(frozenset({"sbx-a"}), BEGIN + timedelta(seconds=60)) == ([], ["sbx-a"])
    assert waiting.update(frozenset(), BEGIN + timedelta(seconds=61)) == ([], [])
    assert waiting.update(frozenset({"sbx-a"}), BEGIN + timedelta(seconds=62)) == (["sbx-a"], [])


def place(view: TaskView) -> tuple[str, str]:
    return view.submitted_at.isoformat(timespec="microseconds"), view.task


@given(st.lists(st.integers(0, 5), max_size=40), st.integers(1, 7))
def test_pages_contain_everything_once_newest_first(ages: list[int], limit: int) -> None:
    """Several of the same time are included."""
    views = [task(f"t{number:03}", age) for number, age in enumerate(ages)]
    shown: list[TaskView] = []
    end = None
    while True:
        page = page_of(map(known, views), place, limit, end)
        shown += page.views
        if (end := page.end) is None:
            break
    assert shown == sorted(views, key=place, reverse=True)


def test_heavy_pages_end_early() -> None:
    """A page stays under the broker's limit, and the next begins where it ended."""
    views = [task(f"t{number:03}", text="x" * 100_000) for number in range(20)]
    page = page_of(map(known, views), place, 20, None)
    assert 1 < len(page.views) < 20
    assert page.end
    assert page_of(map(known, views), place, 20, page.end).views[0].task < page.views[-1].task


@pytest.mark.parametrize("cursor", ["x", "~", "2026~", "nonsense~p1.a", "2026-11-20"])
def test_invalid_cursor_is_refused(cursor: str) -> None:
    """The error names the field."""
    with pytest.raises(ContractError) as refused:
        parse_cursor(ListLiveTasks(cursor=cursor), "p1")
    assert refused.value.problem.field == "cursor"


def test_cursor_of_the_last_release_is_accepted() -> None:
    """The time and the key were in it, without a seal."""
    assert parse_cursor(ListLiveTasks(cursor=f"{BEGIN.isoformat()}~p1.a"), "p1") == (BEGIN.isoformat(), "p1.a")


def test_cursor_is_bound_to_its_request() -> None:
    """A request with equal filters of the project accepts it, also with another limit; other filters refuse it."""
    end = (BEGIN.isoformat(), "p1.a")
    cursor = write_cursor(ListLiveTasks(state=TaskState.PENDING, limit=1), "p1", end)
    assert parse_cursor(ListLiveTasks(state=TaskState.PENDING, limit=2, cursor=cursor), "p1") == end
    for request, project in (
        (ListLiveTasks(cursor=cursor), "p1"),
        (ListLiveTasks(state=TaskState.PENDING, cursor=cursor), "p2"),
        (ListLiveSandboxes(cursor=cursor), "p1"),
    ):
        with pytest.raises(ContractError):
            parse_cursor(request, project)


def test_task_is_found_by_a_part_of_its_name_or_text() -> None:
    """A search field of a user interface: the case of letters is ignored, and no character is a pattern."""
    view = task("task-7", text="Fix the Login form")
    wanted = [
        part
        for part in ("", "TASK-7", "login f", "log%", "form .*")
        if is_wanted_task(view, ListLiveTasks(contains=part))
    ]
    assert wanted == ["", "TASK-7", "login f"]
