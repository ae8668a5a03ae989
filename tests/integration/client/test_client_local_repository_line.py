"""A local repository from `sandherd run --repo` to the fetched branch, with real services, a real worker and git."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sandherd.client import Context, Herd, RepositorySource
from sandherd.contracts.states import BranchState, TaskState
from tests.local_git import Git, new_repository
from tests.polling import eventually

Sandherd = Callable[..., Any]
FIX = """
test "$(git branch --show-current)" = "$BRANCH_NAME" || exit 9
echo fixed >file
git commit --quiet --all --message "Fix it" || exit 8
echo more >rest
"""


@pytest.fixture
def context(line: Context) -> Context:
    """The context of the real services."""
    return line


def new_local(folder: Path) -> Git:
    folder.mkdir()
    git = new_repository(folder / "web")
    git.commit("file", "broken\n")
    return git


@pytest.fixture
def sandherd(started: Callable[..., Any]) -> Sandherd:
    """Run the command as a separate process: the services of the test log to this process's standard output."""

    async def run(*words: str) -> tuple[int, str, str]:
        process = await started(*words)
        out, err = await process.communicate()
        return process.returncode, out.decode(), err.decode()

    return run


async def test_work_on_a_local_repository_comes_back_as_a_branch(
    real: Herd, sandherd: Sandherd, tmp_path: Path
) -> None:
    """A local branch gets the agent's commit and its uncommitted changes; the local work tree is unchanged.

    Another task continues the branch.
    """
    local = new_local(tmp_path / "first")
    first = local("rev-parse", "HEAD")
    (local.folder / "file").write_text("my own change\n")
    status, out, err = await sandherd("run", "Fix it", "--repo", str(local.folder / "."), "--", "/bin/sh", "-c", FIX)
    assert status == 0, out + err
    *_, summary, advice = out.splitlines()
    branch = summary.partition(" ")[0]
    assert summary.endswith(": 2 commits, +2 −1 in 2 files")
    assert advice == f"get it into your repository with `sandherd branches fetch {branch}`"
    status, diff, _ = await sandherd("branches", "diff", branch, "-o", "json")
    assert "+fixed" in json.loads(diff)["diff"]
    status, _, err = await sandherd("branches", "fetch", branch, "--into", str(local.folder))
    assert (status, err) == (0, "")
    assert local("log", "--format=%s", f"main..{branch}").splitlines()[-1] == "Fix it"
    assert (local("show", f"{branch}:file"), local("show", f"{branch}:rest")) == ("fixed", "more")
    assert (local("rev-parse", "main"), local("status", "--porcelain")) == (first, " M file")
    view = await real.branch(branch)
    assert (view.local, view.base_commit, view.commit) == (True, first, local("rev-parse", branch))
    status, _, err = await sandherd("branches", "push", branch)
    assert (status, "sandherd branches fetch" in err) == (1, True)
    assert (await sandherd("branches", "delete", branch, "--yes"))[0] == 0
    assert (await real.branch(view.id)).state is BranchState.DELETED
    assert local("rev-parse", branch) == view.commit
    await check_second_task_continues_the_branch(real, new_local(tmp_path / "second"))


async def check_second_task_continues_the_branch(real: Herd, local: Git) -> None:
    """Check that a task continues it by its name, and fast-forwards the local one; `tasks get` shows both."""
    task = await real.submit("Begin", ["/bin/sh", "-c", "echo one >one"], repository=local.folder)
    assert (await real.wait(task)).state is TaskState.COMPLETED
    await eventually(lambda: _has(real, task, 1))
    branch = (await real.branch(task)).branch
    began = await real.fetch_branch(branch, local.folder)
    view = await real.task(task)
    assert (view.repository, view.branch) == ("web", branch)
    source = RepositorySource(path=str(local.folder), branch=branch)
    second = await real.submit("Go on", ["/bin/sh", "-c", "test -e one && echo two >two"], repository=source)
    assert (await real.wait(second)).state is TaskState.COMPLETED
    await eventually(lambda: _has(real, second, 2))
    found = await real.fetch_branch(second, local.folder)
    assert (found.branch, found.previous, found.changed) == (branch, began.commit, True)
    assert local("ls-tree", "--name-only", branch).split() == ["file", "one", "two"]


async def _has(herd: Herd, task: str, commits: int) -> bool:
    return (await herd.branch(task)).commits == commits
