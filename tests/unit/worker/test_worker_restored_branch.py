"""A work tree that was restored from the previous attempt, and the branch that was saved meanwhile."""

import json
from pathlib import Path

import pytest

from tests.unit.worker.agent_tree import AgentTree, log


async def test_restored_work_tree_is_continued(tree: AgentTree) -> None:
    """The restored work tree has the agent's later commits and its uncommitted changes."""
    await tree.check_out()
    tree.agent("echo 1 > one; git add .; git commit -qm One; echo 2 > two")
    assert await tree.check_out(restored=True)
    assert tree.published == []
    assert (tree.work / "two").exists()
    assert log(tree.received(await tree.saved())) == ["Do it", "One", "More"]


async def test_restored_work_tree_gets_commits_that_were_saved_since(tree: AgentTree) -> None:
    """A branch that has more commits by now is continued from its last one."""
    await tree.check_out()
    tree.agent("echo mine > mine")
    tree.origin.continue_branch({"src/a.py": "a = 2\n"})
    tree.origin.mirrored()
    assert await tree.check_out(restored=True)
    assert (tree.published, (tree.work / "src/a.py").read_text()) == ([], "a = 2\n")
    assert log(tree.received(await tree.saved())) == ["Do it", "Earlier work", "More"]


DIVERGED = {
    "commits": "echo 1 > one; git add .; git commit -qm Other",
    "files": "echo dirty > src/a.py",
    "no-repository": "rm -rf .git",
    "broken": "rm .git/HEAD",
    "elsewhere": "git checkout -q --detach; git commit -q --allow-empty -m D",
    "hooked": "git config core.hooksPath /; rm -rf .git/refs; echo > .git/packed-refs",
}


@pytest.mark.parametrize("name", DIVERGED)
async def test_saved_branch_wins_over_a_restored_one(tree: AgentTree, tmp_path: Path, name: str) -> None:
    """An error is published, the attempt begins from the checkout, and the restored files are beside it."""
    await tree.check_out()
    tree.agent("echo left > left;" + DIVERGED[name])
    tree.origin.continue_branch({"src/a.py": "a = 2\n"})
    tree.origin.mirrored()
    object.__setattr__(tree.resources.assignment, "previous_dir", tmp_path / "previous")
    assert not await tree.check_out(restored=True)
    (error,) = tree.published
    assert json.loads(error.model_dump_json())["phase"] == "repository"
    assert (tree.work / "src/a.py").read_text() == "a = 2\n"
    assert not (tree.work / "left").exists()
    assert (tmp_path / "previous/work/left").read_text() == "left\n"
    saved = await tree.saved()
    assert (saved.commit, saved.bundle, saved.left_out) == (None, None, None)
