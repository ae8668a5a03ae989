"""Which mirrors and records of branches are removed: never one that is needed, those not used for longest first."""

import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from sandherd.contracts.states import BranchState
from spawner.repositories.branch_record import BranchRecord
from spawner.repositories.mirror_limits import (
    COLLECTION_INTERVAL_SECONDS,
    MirrorLimits,
    MirrorUsage,
    collection_is_due,
    may_be_removed,
    mirrors_to_remove,
)
from spawner.repositories.mirror_seed import mirrors_beside

NOW = datetime(2026, 11, 27, tzinfo=UTC)
DAY = timedelta(days=1)
LIMITS = MirrorLimits(age=30 * DAY, number=3, total_bytes=100)


def mirror(name: str, idle: timedelta, size: int = 10, *, needed: bool = False) -> MirrorUsage:
    return MirrorUsage(Path(name), size, NOW - idle, needed)


def removed(*found: MirrorUsage, extra: int = 0) -> list[str]:
    return [str(one.path) for one in mirrors_to_remove(found, LIMITS, NOW, extra=extra)]


def test_mirror_that_no_live_branch_needs_is_removed_after_its_age() -> None:
    """A mirror with a live branch is never removed because of its age."""
    old = 31 * DAY
    assert removed(mirror("a", old), mirror("b", old, needed=True), mirror("c", 29 * DAY)) == ["a"]


def test_least_recently_used_are_removed_while_the_project_has_too_much() -> None:
    """As few as necessary are removed. A mirror that was just used may be about to get a branch."""
    found = [mirror("new", timedelta(0), 50), mirror("b", 2 * DAY, 40), mirror("a", 3 * DAY, 40)]
    assert removed(*found) == ["a"]
    assert removed(mirror("busy", 9 * DAY, 200, needed=True), mirror("a", DAY, 1)) == ["a"]
    assert removed(mirror("fresh", timedelta(minutes=59), 500)) == []


def test_room_is_made_for_another_mirror() -> None:
    """Mirrors are removed at the maximum of their number or size, and not below it."""
    three = [mirror(name, age * DAY) for name, age in (("a", 3), ("b", 2), ("c", 1))]
    assert removed(*three) == []
    assert removed(*three, extra=1) == ["a"]
    assert removed(*three[:2], extra=1) == []
    assert removed(mirror("full", DAY, 100), extra=1) == ["full"]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"state": BranchState.DELETED}, True),
        ({"state": BranchState.MERGED}, True),
        ({"state": BranchState.LIVE}, False),
        ({"state": BranchState.DELETED, "updated_at": NOW - DAY / 2}, False),
        ({"state": BranchState.MERGED, "delete_wanted": "everywhere"}, False),
    ],
)
def test_record_of_an_ended_branch_is_removed_after_its_age(
    changes: dict[str, object], expected: bool
) -> None:  # a row
    """It is not removed while a step is due for the branch."""
    values = {
        "project": "p1", "id": "br-1", "life": "0" * 32, "tasks": ("task-1",), "repository": "r", "branch": "b",
        "base": "main", "base_commit": "1", "commit": "2", "merged_on_trial": "2", "created_at": NOW - 9 * DAY,
        "updated_at": NOW - 2 * DAY,
    }  # fmt: skip
    assert may_be_removed(BranchRecord.model_validate(values | changes), NOW, DAY) is expected


def test_garbage_of_a_mirror_that_stays_too_large_is_collected_rarely() -> None:
    """The same refs need the same objects. Other refs may need fewer: they are collected every ten minutes at most."""
    assert collection_is_due(None, "refs", 0)
    assert not collection_is_due(("refs", 0), "refs", 10 * COLLECTION_INTERVAL_SECONDS)
    assert not collection_is_due(("refs", 0), "other", COLLECTION_INTERVAL_SECONDS - 1)
    assert collection_is_due(("refs", 0), "other", COLLECTION_INTERVAL_SECONDS)


def test_mirror_that_is_removed_meanwhile_is_none_to_begin_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mirror of another project may be removed at any moment."""
    for project in ("p1", "p2", "p3"):
        (tmp_path / project / "a.git").mkdir(parents=True)
        (tmp_path / project / "a.git" / "HEAD").touch()
    stat = Path.stat

    def stat_before_removal(path: Path, **options: Any) -> Any:
        found = stat(path, **options)
        if path == tmp_path / "p2" / "a.git" / "HEAD":
            shutil.rmtree(path.parent)
        return found

    monkeypatch.setattr(Path, "stat", stat_before_removal)
    assert mirrors_beside(tmp_path / "p1" / "a.git") == [tmp_path / "p3" / "a.git"]
