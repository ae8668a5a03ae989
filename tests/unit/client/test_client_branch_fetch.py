"""`fetch_branch` into a real repository: what an agent has committed is checked, and nothing of it is executed."""

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import pytest

from sandherd.client.errors import HerdError
from sandherd.client.repositories import branch_fetch
from sandherd.client.repositories.branch_fetch import FetchedBranch
from sandherd.contracts.errors import Code
from tests.local_git import BRANCH, REF, Git, clone, new_repository


@dataclass
class Herd:
    """A user's repository, and that of a sandbox, which is a clone of it with the task's branch."""

    local: Git
    sandbox: Git
    base: str
    downloads: int = 0

    def saved(self, *revisions: str) -> Path:
        """The bundle of the branch since its base, as the spawner would store it."""
        return self.sandbox.bundle(self.sandbox.folder / "bundle", *(revisions or (REF, f"^{self.base}")))

    async def fetch(
        self, bundle: Path, commit: str, *, branch: str = BRANCH, into: Path | None = None
    ) -> FetchedBranch:
        async def download(out: IO[bytes]) -> None:
            self.downloads += 1
            with bundle.open("rb") as file:
                shutil.copyfileobj(file, out)

        return await branch_fetch.fetch(branch, commit, into or self.local.folder, download)

    async def refused(self, bundle: Path, commit: str, code: Code, *, branch: str = BRANCH) -> str:
        """The line of the refusal; the repository is as it was then, also its objects."""
        before = self.state()
        with pytest.raises(HerdError) as refused:
            await self.fetch(bundle, commit, branch=branch)
        assert self.state() == before
        assert refused.value.problem.code is code
        assert refused.value.problem.remedy
        return refused.value.line

    def state(self) -> tuple[str, ...]:
        """All refs, HEAD, the work tree, and how many objects there are."""
        words = (("for-each-ref",), ("symbolic-ref", "HEAD"), ("status", "--porcelain"), ("count-objects", "-v"))
        return tuple(self.local(*each) for each in words)


@pytest.fixture
def herd(tmp_path: Path) -> Herd:
    local = new_repository(tmp_path / "web")
    base = local.commit()
    sandbox = clone(local.folder, tmp_path / "sandbox")
    sandbox("checkout", "--quiet", "-b", BRANCH)
    return Herd(local, sandbox, base)


async def test_branch_is_created_and_nothing_else_changes(herd: Herd) -> None:
    """The work tree, the index, HEAD, other branches, tags and FETCH_HEAD stay as they are."""
    (herd.local.folder / "file").write_text("changed here\n")
    herd.sandbox("tag", "v1")
    commit = herd.sandbox.commit("code.py", "pass\n")
    found = await herd.fetch(herd.saved(), commit)
    assert (found.branch, found.commit, found.repository, found.previous, found.changed) == (
        BRANCH, commit, herd.local.folder, None, True,
    )  # fmt: skip
    assert herd.local("for-each-ref", "--format=%(refname) %(objectname)").splitlines() == [
        f"{REF} {commit}",
        f"refs/heads/main {herd.base}",
    ]
    assert herd.local("symbolic-ref", "HEAD") == "refs/heads/main"
    assert herd.local("status", "--porcelain") == " M file"
    assert not (herd.local.folder / ".git/FETCH_HEAD").exists()
    herd.local("fsck", "--strict")
    assert herd.local("show", f"{BRANCH}:code.py") == "pass"


async def test_branch_is_fast_forwarded_and_fetched_once(herd: Herd, tmp_path: Path) -> None:
    """A commit that the local branch has or contains already is not downloaded."""
    first = herd.sandbox.commit("code.py", "pass\n")
    await herd.fetch(herd.saved(), first)
    second = herd.sandbox.commit("code.py", "return\n")
    bundle = herd.saved()
    found = await herd.fetch(bundle, second, into=herd.local.folder)
    assert (found.previous, found.changed, herd.downloads) == (first, True, 2)
    assert not (await herd.fetch(bundle, second)).changed
    herd.local("worktree", "add", "--quiet", str(tmp_path / "beside"), BRANCH)
    Git(tmp_path / "beside").commit("mine", "mine\n")
    assert not (await herd.fetch(bundle, second)).changed
    assert herd.downloads == 2


async def test_local_commits_are_not_overwritten(herd: Herd) -> None:
    """A branch with other commits stays; the error names the command that makes place."""
    commit = herd.sandbox.commit("code.py", "pass\n")
    herd.local("checkout", "--quiet", "-b", BRANCH)
    herd.local.commit("mine", "mine\n")
    herd.local("checkout", "--quiet", "main")
    line = await herd.refused(herd.saved(), commit, Code.CONFLICT)
    assert f"`git branch -m {BRANCH} NAME`" in line


async def test_branch_that_is_checked_out_is_refused(herd: Herd, tmp_path: Path) -> None:
    """Here or in another work tree: its files would not be those of its commit."""
    commit = herd.sandbox.commit("code.py", "pass\n")
    herd.local("checkout", "--quiet", "-b", BRANCH)
    assert "checked out" in await herd.refused(herd.saved(), commit, Code.CONFLICT)
    herd.local("checkout", "--quiet", "main")
    herd.local("worktree", "add", "--quiet", str(tmp_path / "beside"), BRANCH)
    assert str(tmp_path / "beside") in await herd.refused(herd.saved(), commit, Code.CONFLICT)


async def test_symbolic_branch_is_refused(herd: Herd) -> None:
    """It would move the branch behind it, which is checked out."""
    commit = herd.sandbox.commit("code.py", "pass\n")
    herd.local("symbolic-ref", REF, "refs/heads/main")
    await herd.refused(herd.saved(), commit, Code.CONFLICT)


async def test_branch_in_place_of_a_folder_of_branches_is_refused(herd: Herd) -> None:
    """Git's own reason, and no refusal of the bundle."""
    commit = herd.sandbox.commit("code.py", "pass\n")
    herd.local("branch", "feature")
    bundle, before = herd.saved(), herd.state()[:3]
    with pytest.raises(HerdError) as refused:
        await herd.fetch(bundle, commit)
    assert refused.value.problem.code is Code.CONFLICT
    assert "feature" in refused.value.line
    assert herd.state()[:3] == before


@pytest.mark.parametrize(
    "revisions",
    [
        ("refs/heads/main-2", "^main"),
        (REF, "refs/heads/main-2", "^main"),
        (REF, "refs/tags/v1", "^main"),
        ("HEAD", "^main"),
    ],
    ids=" ".join,
)
async def test_other_refs_are_refused(herd: Herd, revisions: tuple[str, ...]) -> None:
    """A bundle has exactly the branch that was named: not another one, and none beside it."""
    commit = herd.sandbox.commit("code.py", "pass\n")
    herd.sandbox("branch", "main-2")
    herd.sandbox("tag", "-a", "-m", "one", "v1")
    line = await herd.refused(herd.saved(*revisions), commit, Code.REFUSED)
    assert "exactly this branch" in line


async def test_another_commit_is_refused(herd: Herd) -> None:
    """Only the commit that the herd has checked is fetched."""
    first = herd.sandbox.commit("code.py", "pass\n")
    herd.sandbox.commit("code.py", "return\n")
    await herd.refused(herd.saved(), first, Code.REFUSED)


async def test_missing_base_is_refused_with_a_fix(herd: Herd, tmp_path: Path) -> None:
    """Another repository, or one that has not fetched the base."""
    commit = herd.sandbox.commit("code.py", "pass\n")
    bundle = herd.saved()
    herd.local = new_repository(tmp_path / "other")
    herd.local.commit("other", "other\n")
    line = await herd.refused(bundle, commit, Code.CONFLICT)
    assert herd.base in line
    assert "fetch its base" in line


async def test_unrelated_history_of_the_same_branch_is_not_taken_for_it(herd: Herd, tmp_path: Path) -> None:
    """A bundle without prerequisites, whose branch does not continue the local one."""
    commit = herd.sandbox.commit("code.py", "pass\n")
    await herd.fetch(herd.saved(), commit)
    foreign = new_repository(tmp_path / "foreign", f"--initial-branch={BRANCH}")
    other = foreign.commit("x", "x\n")
    await herd.refused(foreign.bundle(tmp_path / "bundle", REF), other, Code.CONFLICT)


HOSTILE_TREES = {
    ".git": ("40000", ".git"),
    ".GIT": ("40000", ".GIT"),
    ".git as a file": ("100644", ".git"),
    "git~1": ("40000", "git~1"),
    "a name with a slash": ("100644", "a/../../etc/passwd"),
    "a parent": ("40000", ".."),
    "an ignored letter": ("40000", ".g\u200cit"),
}


@pytest.mark.parametrize("name", HOSTILE_TREES)
async def test_hostile_trees_are_refused(herd: Herd, name: str) -> None:
    """Paths that a checkout would write into `.git` or elsewhere; git before 2.46 accepts them from a bundle."""
    mode, path = HOSTILE_TREES[name]
    blob = herd.sandbox.object("blob", b"[core]\n\tfsmonitor = touch ran\n")
    inner = blob if mode == "100644" else herd.sandbox.tree(("100644", "config", blob))
    commit = herd.sandbox.commit_tree(herd.sandbox.tree((mode, path, inner)), herd.base)
    herd.sandbox("update-ref", REF, commit)
    assert "is refused" in await herd.refused(herd.saved(), commit, Code.REFUSED)


@pytest.mark.parametrize(
    "modules",
    [
        '[submodule "x"]\n\tpath = x\n\turl = --upload-pack=touch ran\n',
        '[submodule "../../x"]\n\tpath = x\n\turl = https://git.example.org/x\n',
        '[submodule "x"]\n\tpath = x\n\turl = https://git.example.org/x\n\tupdate = !touch ran\n',
    ],
    ids=["option as url", "name outside", "command"],
)
async def test_hostile_submodules_are_refused(herd: Herd, modules: str) -> None:
    """Submodules that make a later `git submodule update` run a program are refused."""
    commit = herd.sandbox.commit(".gitmodules", modules)
    await herd.refused(herd.saved(), commit, Code.REFUSED)


async def test_forged_objects_are_refused(herd: Herd) -> None:
    """A malformed commit, and a pack whose bytes were changed."""
    tree = herd.sandbox("rev-parse", "HEAD^{tree}")
    forged = f"tree {tree}\nparent {herd.base}\nauthor x\ncommitter A <a@example.org> 1 +0000\n\nx\n".encode()
    commit = herd.sandbox.object("commit", forged)
    herd.sandbox("update-ref", REF, commit)
    await herd.refused(herd.saved(), commit, Code.REFUSED)
    herd.sandbox("update-ref", REF, herd.base)
    herd.sandbox("reset", "--quiet", "--hard")
    commit = herd.sandbox.commit("code.py", "pass\n")
    damaged = bytearray(herd.saved().read_bytes())
    damaged[-30] ^= 0xFF
    (herd.sandbox.folder / "bundle").write_bytes(damaged)
    await herd.refused(herd.sandbox.folder / "bundle", commit, Code.REFUSED)


async def test_bundle_without_all_objects_is_refused(herd: Herd) -> None:
    """A file of the commit is not in the bundle: the branch would not be complete."""
    blob = herd.sandbox.object("blob", b"absent\n")
    commit = herd.sandbox.commit_tree(herd.sandbox.tree(("100644", "absent", blob)), herd.base)
    herd.sandbox("update-ref", REF, commit)
    pack = herd.sandbox(
        "pack-objects",
        "--quiet",
        "incomplete",
        stdin=f"{commit}\n{herd.sandbox('rev-parse', f'{commit}^{{tree}}')}\n".encode(),
    )
    header = f"# v2 git bundle\n-{herd.base} base\n{commit} {REF}\n\n".encode()
    bundle = herd.sandbox.folder / "bundle"
    bundle.write_bytes(header + (herd.sandbox.folder / f"incomplete-{pack}.pack").read_bytes())
    await herd.refused(bundle, commit, Code.REFUSED)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"ref: refs/heads/main\n",
        b"# v2 git bundle\n",
        b"# v3 git bundle\n@filter=blob:none\n" + b"0" * 40 + b" refs/heads/feature/fix-it\n\nPACK",
        b"# v2 git bundle\n" + b"-" + b"0" * 100_000,
        b"# v2 git bundle\n" + (b"0" * 40 + b" refs/heads/x\n") * 2000,
    ],
    ids=["empty", "text", "incomplete", "filtered", "long line", "many lines"],
)
async def test_incomplete_bundle_is_refused(herd: Herd, content: bytes) -> None:
    """Before git reads it."""
    bundle = herd.sandbox.folder / "bundle"
    bundle.write_bytes(content)
    await herd.refused(bundle, herd.base, Code.REFUSED)


@pytest.mark.parametrize("branch", ["-f", "a..b", "../main", "x:refs/heads/main", "HEAD", "refs/../x", "a b", ""])
async def test_hostile_names_are_refused(herd: Herd, branch: str) -> None:
    """Hostile names are refused also if the herd has not checked them."""
    herd.sandbox.commit("code.py", "pass\n")
    await herd.refused(herd.saved(), herd.base, Code.REFUSED, branch=branch)
    assert herd.downloads == 0


async def test_nothing_is_executed(herd: Herd, tmp_path: Path) -> None:
    """No hook of the repository, which sees the fetched commits, and no attribute or filter of the branch."""
    ran = tmp_path / "ran"
    for hook in ("reference-transaction", "post-checkout", "post-merge", "pre-auto-gc"):
        path = herd.local.folder / ".git/hooks" / hook
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/sh\ntouch {ran}\n")
        path.chmod(0o755)
    herd.local("config", "filter.run.smudge", f"touch {ran}")
    herd.sandbox.commit(".gitattributes", "* filter=run diff=run\n")
    commit = herd.sandbox.commit("code.py", "pass\n")
    assert (await herd.fetch(herd.saved(), commit)).changed
    assert not ran.exists()


async def test_shallow_repository_is_refused(herd: Herd, tmp_path: Path) -> None:
    """With the command that completes it."""
    herd.local.commit("file", "two\n")
    commit = herd.sandbox.commit("code.py", "pass\n")
    herd.local = clone(herd.local.folder, tmp_path / "shallow", "--depth=1")
    assert "--unshallow" in await herd.refused(herd.saved(), commit, Code.INVALID_FIELD)


async def test_repository_with_sha256_is_fetched_into(tmp_path: Path) -> None:
    """The format of objects is that of the local repository."""
    local = new_repository(tmp_path / "web", "--object-format=sha256")
    base = local.commit()
    sandbox = clone(local.folder, tmp_path / "sandbox")
    sandbox("checkout", "--quiet", "-b", BRANCH)
    herd = Herd(local, sandbox, base)
    commit = sandbox.commit("code.py", "pass\n")
    assert (await herd.fetch(herd.saved(), commit)).commit == commit
    assert local("rev-parse", REF) == commit


async def test_bare_repository_is_fetched_into(herd: Herd, tmp_path: Path) -> None:
    """It has no work tree to protect."""
    commit = herd.sandbox.commit("code.py", "pass\n")
    bare = clone(herd.local.folder, tmp_path / "web.git", "--bare")
    assert (await herd.fetch(herd.saved(), commit, into=bare.folder)).repository == bare.folder
    assert bare("rev-parse", REF) == commit
