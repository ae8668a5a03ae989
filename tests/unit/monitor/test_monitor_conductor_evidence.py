"""What the Conductor sees between sandboxes, and what it does not take for a conflict or a duplicate."""

from typing import Any

import pytest

from monitor.conductor.evidence import Evidence, evidence_of
from monitor.conductor.herd_index import MAX_EDITORS
from monitor.conductor.ignored_files import IgnoredFiles, is_plain
from monitor.conductor.members import TaskContext
from monitor.conductor.similarity import text_similarity, title_of
from sandherd.contracts.events.branch import BranchCreated, BranchMerged, BranchOverlap, BranchOverlapFound, BranchSaved
from sandherd.settings.coordination import IGNORED_FILES
from tests.unit.monitor.conductor_scopes import REPOSITORY, World, edit, summary

TITLE = "Add a discount for orders of more than ten books to the checkout of the shop"
DIGEST = "a" * 64


def seen(world: World, sandbox: str) -> list[Evidence]:
    member = world.scope.member(sandbox)
    assert member is not None
    return list(evidence_of(member, world.scope, ()).values())


def test_the_same_file_is_a_conflict_about_the_later_sandbox_from_both_sides() -> None:
    """Whichever summary changes, there is one finding: about the later sandbox, and it names the earlier one."""
    world = World()
    world.put(summary("sbx-2", edit("shop/cart.py", (1, 5)), began=10))
    world.put(summary("sbx-1", edit("shop/cart.py", (40, 50))))
    (one,) = seen(world, "sbx-1")
    assert seen(world, "sbx-2") == [one]
    assert (one.kind, one.sandbox, one.other, one.path, one.severity) == (
        *("conflict", "sbx-2", "sbx-1"),
        *("shop/cart.py", "file"),
    )


def test_overlapping_lines_raise_the_severity_and_are_named_by_side() -> None:
    """Lines within the context of a hunk overlap; each side's own range is stated."""
    world = World()
    world.put(summary("sbx-1", edit("a.py", (40, 50))))
    world.put(summary("sbx-2", edit("a.py", (1, 5), (53, 60)), began=10))
    (one,) = seen(world, "sbx-1")
    assert (one.severity, one.lines, one.other_lines) == ("lines", (53, 60), (40, 50))


@pytest.mark.parametrize(
    ("first", "later"),
    [
        ({"edits": (edit("a.py", digest=DIGEST),)}, {"edits": (edit("a.py", digest=DIGEST),)}),
        ({"edits": (edit("a.py"),)}, {"edits": (edit("a.py"),), "base": "next"}),
        ({"edits": (edit("a.py"),)}, {"edits": (edit("a.py"),), "repository": "https://git.example.org/demo/other"}),
        ({"edits": (edit("a.py"),)}, {"edits": (edit("a.py"),), "state": "finished"}),
        ({"edits": (edit("a.py"),)}, {"edits": (edit("a.py"),), "task": "task-1"}),
        ({"edits": (edit("go.sum"), edit("web/node_modules/x/index.js"))},) * 2,
        ({"edits": (edit("../a.py"), edit("/etc/passwd"), edit("a\n.py"), edit("x" * 401))},) * 2,
    ],
    ids=["same content", "other base", "other repository", "finished", "same task", "ignored", "no path of a tree"],
)
def test_no_conflict(first: dict[str, object], later: dict[str, object]) -> None:
    """Each of these looks like a conflict, and is none."""
    world = World(IGNORED_FILES)
    world.put(summary("sbx-1").model_copy(update=first))
    world.put(summary("sbx-2", began=10).model_copy(update=later))
    assert [one for name in ("sbx-1", "sbx-2") for one in seen(world, name) if one.kind == "conflict"] == []


def test_tasks_of_a_matrix_do_not_conflict() -> None:
    """Tasks of one batch with the same text are alternatives; with different texts their edits conflict."""
    for title, kinds in ((TITLE, []), ("Something else", ["conflict"])):
        world = World()
        world.put(summary("sbx-1", edit("a.py"), title=TITLE), TaskContext(batch="batch-1"))
        world.put(summary("sbx-2", edit("a.py"), title=title, began=10), TaskContext(batch="batch-1"))
        assert [one.kind for one in seen(world, "sbx-2")] == kinds


def test_a_trial_merge_is_a_conflict_of_highest_severity_until_it_is_none() -> None:
    """Of two live sandboxes on the two branches, whichever merge found it, also in files that neither edits."""
    world = World()
    world.put(summary("sbx-1", edit("a.py")))
    world.put(summary("sbx-2", edit("a.py"), began=10))
    overlap = BranchOverlap(branch="feature/1", paths=["a.py", "b.py"])
    found = BranchOverlapFound(repository=REPOSITORY, branch="feature/2", commit="c" * 40, overlaps=[overlap])
    assert world.fold(found) == {"sbx-1", "sbx-2"}
    expected = {("sbx-2", "sbx-1", "a.py", "merge"), ("sbx-2", "sbx-1", "b.py", "merge")}
    for name in ("sbx-1", "sbx-2"):
        assert {(one.sandbox, one.other, one.path, one.severity) for one in seen(world, name)} == expected
    assert world.fold(found.model_copy(update={"overlaps": []})) == {"sbx-1", "sbx-2"}
    assert [one.severity for one in seen(world, "sbx-1")] == ["file"]


def test_the_same_title_is_a_duplicate_of_the_first_until_other_files_are_edited() -> None:
    """Before both have edited files the titles decide; files that differ make it no duplicate."""
    world = World()
    world.put(summary("sbx-2", title=TITLE, began=10))
    world.put(summary("sbx-1", title=TITLE.upper() + "."))
    (one,) = seen(world, "sbx-1")
    assert (one.kind, one.sandbox, one.other) == ("duplicate", "sbx-2", "sbx-1")
    assert one.similarity is not None
    assert one.similarity.total == 1
    world.put(summary("sbx-1", edit("a.py", seconds=20), title=TITLE))
    world.put(summary("sbx-2", edit("b.py", seconds=20), title=TITLE, began=10))
    assert seen(world, "sbx-2") == []


def test_tasks_without_a_repository_are_compared_for_duplicates() -> None:
    """By their titles, within their project."""
    world = World()
    for number in (1, 2):
        world.put(summary(f"sbx-{number}", title=TITLE, began=number, repository=None, base=None, branch=None))
    assert [one.kind for one in seen(world, "sbx-2")] == ["duplicate"]


@pytest.mark.parametrize(
    ("fields", "context"),
    [
        ({"task": "task-1"}, TaskContext()),
        ({"branch": "feature/1"}, TaskContext()),
        ({}, TaskContext(batch="batch-1")),
        ({}, TaskContext(builds_on=frozenset({"task-1"}))),
        ({"title": TITLE.replace("ten", "10")}, TaskContext()),
    ],
    ids=["attempts of a task", "the same branch", "a batch", "a dependency", "another number"],
)
def test_no_duplicate(fields: dict[str, object], context: TaskContext) -> None:
    """Tasks that are meant to be alike, and tasks of one template that name different things."""
    world = World()
    world.put(summary("sbx-1", title=TITLE.replace("ten", "20"), branch="feature/1"), TaskContext(batch="batch-1"))
    world.put(summary("sbx-2", began=10).model_copy(update={"title": TITLE.replace("ten", "20"), **fields}), context)
    assert seen(world, "sbx-2") == []


def test_titles_of_a_template_are_not_alike() -> None:
    """Titles that name different tickets or paths have the similarity 0; other titles that of their shingles."""
    one = title_of("Fix issue #12 as described in CONTRIBUTING, then run all tests")
    assert text_similarity(one, title_of("Fix issue #13 as described in CONTRIBUTING, then run all tests")) == 0
    assert text_similarity(title_of("Write the docs"), title_of("write  the docs!")) == 1
    assert 0 < text_similarity(title_of("Write the docs of the cart"), title_of("Write the docs of the shop")) < 1
    assert text_similarity(title_of(""), title_of("")) == text_similarity(title_of("go on"), title_of("go on")) == 0


def test_a_base_that_moves_in_edited_files_is_a_changed_dependency() -> None:
    """A branch that is merged into the base, with a path that a sandbox edits which began before."""
    world = World()
    world.put(summary("sbx-1", edit("a.py"), edit("b.py")))
    world.put(summary("sbx-2", edit("c.py")))
    world.put(summary("sbx-3", edit("a.py", seconds=400), began=300))
    about: dict[str, Any] = {"repository": REPOSITORY, "branch": "feature/9"}
    saved: dict[str, Any] = {"commit": "c" * 40, "commits": 1, "files_changed": 2, "additions": 1, "deletions": 1}
    world.fold(BranchCreated(**about, base="main"))
    world.fold(BranchSaved(**about, **saved, paths=["a.py", "z.py"]))
    assert world.fold(BranchMerged(**about, commit="d" * 40)) == {"sbx-1", "sbx-2", "sbx-3"}
    changed = {
        name: [one for one in seen(world, name) if one.kind == "dependency"] for name in ("sbx-1", "sbx-2", "sbx-3")
    }
    assert [(one.cause, one.other, one.paths) for one in changed["sbx-1"]] == [("base", "feature/9", ("a.py",))]
    assert not changed["sbx-2"]
    assert not changed["sbx-3"]


def test_a_task_that_is_built_on_and_still_edits_is_a_changed_dependency() -> None:
    """By edits after the sandbox began: of the task that it depends on, and of the branch that is its base."""
    world = World()
    world.put(summary("sbx-1", edit("old.py", seconds=5), edit("new.py", seconds=50), state="finished"))
    world.put(summary("sbx-2", began=10), TaskContext(builds_on=frozenset({"task-1"})))
    world.put(summary("sbx-3", edit("new.py"), began=10, base="feature/1"))
    assert [(one.cause, one.other, one.paths) for one in seen(world, "sbx-2")] == [("task", "task-1", ("new.py",))]
    assert [(one.cause, one.other, one.paths) for one in seen(world, "sbx-3")] == [("base", "feature/1", ("new.py",))]
    later = summary("sbx-1", edit("new.py", seconds=60), state="finished")
    assert world.put(later) == {"sbx-1", "sbx-2", "sbx-3"}


def test_a_file_for_everyone_is_compared_among_its_first_editors_from_both_sides() -> None:
    """Of more editors than the maximum, the same pairs are found from every side."""
    world = World()
    names = [f"sbx-{number}" for number in range(MAX_EDITORS + 5)]
    for number, name in enumerate(names):
        world.put(summary(name, edit("CHANGELOG.md"), began=number))
    pairs = [{one.key for one in seen(world, name)} for name in names]
    assert len(set().union(*pairs)) == MAX_EDITORS * (MAX_EDITORS - 1) // 2
    assert pairs[-1] == set()
    assert len(pairs[0]) == MAX_EDITORS - 1


def test_the_work_of_a_change_does_not_depend_on_the_herd() -> None:
    """A summary that changes is compared with the sandboxes that share a file or title, of 30 as of 3,000 others."""

    def work(others: int) -> int:
        world = World()
        for number in range(3, others):
            world.put(summary(f"sbx-{number}", edit(f"file-{number}.py"), title=f"Work on part {number}", began=number))
        before = world.scope.index.comparison_count
        world.put(summary("sbx-1", edit("a.py"), title=TITLE))
        world.put(summary("sbx-2", edit("a.py"), edit("b.py"), title=TITLE, began=10))
        for _again in range(10):
            world.put(summary("sbx-2", edit("a.py"), edit("b.py"), title=TITLE, began=10))
            seen(world, "sbx-2")
        return world.scope.index.comparison_count - before

    assert work(30) == work(3000) == 21


def test_members_that_leave_are_in_no_index() -> None:
    """After all have gone nothing is stored of them."""
    world = World()
    for number in (1, 2):
        world.put(summary(f"sbx-{number}", edit("a.py"), title=TITLE, began=number), TaskContext("b", frozenset({"x"})))
    world.put(summary("sbx-1", edit("b.py"), title=TITLE, branch="other", state="finished"))
    for number in (1, 2):
        world.remove(f"sbx-{number}")
    index = world.scope.index
    postings = [value._members for name, value in vars(index).items() if hasattr(value, "_members")]
    assert not any(postings)
    assert not index.members
    assert not index._similar_titles


def test_ignored_files_and_plain_paths() -> None:
    """A pattern without a slash is of a part of a path, one with a slash of all of it; hostile paths are not plain."""
    ignored = IgnoredFiles({"*.lock", "dist", "docs/generated/*"})
    assert all(path in ignored for path in ("uv.lock", "a/b.lock", "web/dist/x.js", "docs/generated/a/b.md"))
    assert not any(path in ignored for path in ("lock.py", "distance.py", "a/docs/generated/x.md", "src/locks.py"))
    assert is_plain("src/größe.py")
    assert is_plain(".github/a b.yml")
    assert not any(map(is_plain, ("", "/a", "a//b", "./a", "a/../b", "a\x1b[0m", "a\u202eb", "a\ud800", "a\x00")))
