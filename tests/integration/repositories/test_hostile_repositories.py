"""A hostile repository, and a hostile agent in it, from the submission to the pushed branch."""

import asyncio
import subprocess
from pathlib import Path

import pytest

from sandherd.contracts.repositories import Repository
from tests.integration.repositories.conftest import Upstream, commit, git
from tests.integration.repositories.test_branches import Make, home, person, reaches, repository, spawner
from tests.integration.spawner.conftest import ProjectUser

__all__ = ["home", "person", "repository", "spawner"]
PROGRAM = """#!/bin/sh
touch {mark}
cat
"""
AGENT = """
test "$(cat ./-rf)" = "a name" && test -L outside && test -d a.d && test -f a || exit 9
for hook in pre-commit post-commit post-checkout reference-transaction pre-push pre-auto-gc; do
  mkdir -p .git/hooks && cp {program} .git/hooks/$hook || exit 7
  chmod +x .git/hooks/$hook
done
rm .git/hooks/pre-commit .git/hooks/reference-transaction
echo two > ./-rf && git add -- ./-rf && git commit --quiet --message two || exit 8
git config filter.evil.clean "touch {mark}; cat"
git config filter.evil.smudge "touch {mark}; cat"
git config core.fsmonitor "touch {mark}"
git config core.pager "touch {mark}"
git config gpg.program "touch {mark}"
git config commit.gpgSign true
git config diff.external "touch {mark}"
git config uploadpack.packObjectsHook "touch {mark}"
ln -s /etc/shadow stolen
mkdir b && echo rest > b/c
"""
FILES, FOLDERS = 100_000, 1000


def hostile(upstream: Upstream, mark: Path) -> None:
    """Names, links, attributes and submodules that attack a checkout, and a branch with a conflicting name."""
    program = upstream.clone / "program"
    program.write_text(PROGRAM.format(mark=mark))
    program.chmod(0o755)
    (upstream.clone / "outside").symlink_to("/etc")
    (upstream.clone / "above").symlink_to("../../../..")
    modules = '[submodule "sub"]\n\tpath = sub\n\turl = file:///etc\n\tupdate = checkout\n'
    git(upstream.clone, "checkout", "--quiet", "-B", "feature")
    git(upstream.clone, "push", "--quiet", "origin", "feature")
    git(upstream.clone, "checkout", "--quiet", "main")
    commit(
        upstream.clone,
        {
            ".gitattributes": "* filter=evil diff=evil merge=evil\n",
            ".gitmodules": modules, "-rf": "a name", "--help": "", "README": "1", "readme": "2", "a": "file",
            "a.d/b": "beside it", "tab\there": "", "new\nline": "", "é": "composed", "e\u0301": "not", "x.x": "odd",
        },
    )  # fmt: skip
    git(upstream.clone, "update-index", "--add", "--cacheinfo", f"160000,{upstream.first},sub")
    git(upstream.clone, "commit", "--quiet", "--message", "submodule")
    git(upstream.clone, "push", "--quiet", "origin", "main")


async def test_repository_and_agent_execute_nothing_outside(
    spawner: Make, person: ProjectUser, repository: Repository, upstream: Upstream, tmp_path: Path
) -> None:
    """The agent's commit and its changes are pushed with all names; no program ran outside of the sandbox."""
    mark = tmp_path / "ran-outside"
    hostile(upstream, mark)
    script = AGENT.format(mark=mark, program="program")
    async with spawner(isolation="auto").running():
        task = await person.submit(["/bin/sh", "-c", script], repository=repository)
        ended = await person.ended(task)
        assert (ended.state, ended.error) == ("completed", None)
        view = await reaches(person, task, lambda found: found.pushed_commit is not None or found.problem is not None)
    assert (view.problem, view.commits, view.branch) == (None, 2, "feature-do-it")
    assert upstream.head(view.branch) == view.commit
    names = git(upstream.path, "-c", "core.quotePath=false", "ls-tree", "-r", "-z", "--name-only", view.branch)
    assert {"-rf", "--help", "README", "readme", "a", "a.d/b", "new\nline", "sub", "b/c", "stolen"} <= {
        *names.split("\0")
    }
    assert git(upstream.path, "show", f"{view.branch}:stolen") == "/etc/shadow"
    assert git(upstream.path, "show", f"{view.branch}:-rf") == "two"
    assert not mark.exists()


def import_files(repository: Path) -> None:
    """Add the files to the base branch, all with the same content."""
    many = "".join(f"M 100644 :1 {number % FOLDERS}/{number}\n" for number in range(FILES))
    author = "committer A <a@example.com> 0 +0000"
    stream = f"blob\nmark :1\ndata 2\nx\n\ncommit refs/heads/main\n{author}\ndata 4\nmany\n{many}\n"
    subprocess.run(["git", "fast-import", "--quiet", "--force"], cwd=repository, input=stream.encode(), check=True)


@pytest.mark.long  # checking out and watching this number of files takes 20 s of CPU; the tests above use fewer
async def test_hundred_thousand_files_are_checked_out_and_saved(
    spawner: Make, person: ProjectUser, repository: Repository, upstream: Upstream
) -> None:
    """The branch has the agent's changes of them, and diff and event are correspondingly small."""
    await asyncio.to_thread(import_files, upstream.path)
    script = "rm -r 7; echo y > 8/8; git add 8; git commit --quiet --message y; mkdir new; cd new; touch $(seq 1000)"
    async with spawner(isolation="auto").running():
        task = await person.submit(["/bin/sh", "-c", script], repository=repository)
        ended = await person.ended(task)
        assert (ended.state, ended.error) == ("completed", None)
        view = await reaches(person, task, lambda found: found.pushed_commit is not None or found.problem is not None)
    assert (view.problem, view.commits, view.files_changed) == (None, 2, 100 + 1 + 1000)
    assert upstream.head(view.branch) == view.commit
