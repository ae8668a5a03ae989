"""Bundles from a hostile sandbox: objects that attack at a checkout are refused, and nothing is executed."""

import asyncio
import os
import subprocess
from pathlib import Path

import pytest

from spawner.repositories.git import GitError
from spawner.repositories.mirror import Mirror
from tests.integration.repositories.conftest import PERSON, Sandbox, Upstream, commit, git

BRANCH = "feature/search"
REFUSED_BY_FSCK = r"contains '\.(git|\.)'|hasDot|gitmodules|hasDotgit|fullPathname"
TREE, FILE, LINK = "40000", "100644", "120000"


def put(folder: Path, kind: str, content: bytes) -> bytes:
    """Store an object without checks; returns its id."""
    words = ("git", "hash-object", "-t", kind, "-w", "--literally", "--stdin")
    return subprocess.run(words, cwd=folder, input=content, capture_output=True, check=True).stdout.strip()


def tree(folder: Path, *entries: tuple[str, str, bytes]) -> bytes:
    """Create a tree of these entries: mode, name, id."""
    parts = (f"{mode} {name}\0".encode() + bytes.fromhex(oid.decode()) for mode, name, oid in entries)
    return put(folder, "tree", b"".join(parts))


def hostile_tree(folder: Path, attack: str) -> bytes:
    """Create a root tree that attacks a checkout."""
    script = put(folder, "blob", b"[core]\n\tfsmonitor = touch /tmp/owned\n")
    nested = tree(folder, (FILE, "config", script))
    modules = put(folder, "blob", b'[submodule "x"]\n\tpath = x\n\turl = -u./payload\n')
    return {
        "git folder": lambda: tree(folder, (TREE, ".git", nested)),
        "case of it": lambda: tree(folder, (TREE, ".GIT", nested)),
        "short name of it": lambda: tree(folder, (TREE, "git~1", nested)),
        "folder above": lambda: tree(folder, (TREE, "..", nested)),
        "submodule": lambda: tree(folder, (FILE, ".gitmodules", modules)),
        "link to modules": lambda: tree(folder, (LINK, ".gitmodules", put(folder, "blob", b"../../etc/passwd"))),
        "slash": lambda: tree(folder, (FILE, "a/b", script)),
    }[attack]()


@pytest.mark.parametrize(
    "attack",
    [
        "git folder",
        "case of it",
        "short name of it",
        "folder above",
        "submodule",
        "link to modules",
        "slash",
    ],
)
async def test_hostile_tree_is_refused(mirror: Mirror, upstream: Upstream, sandbox: Sandbox, attack: str) -> None:
    """The branch stays as it was, and continues with the next valid bundle."""
    await mirror.reset_branch(BRANCH, upstream.first)
    await sandbox.start(mirror, BRANCH)
    root = hostile_tree(sandbox.folder, attack).decode()
    made = git(sandbox.folder, "commit-tree", root, "-p", upstream.first, "-m", "attack")
    git(sandbox.folder, "update-ref", f"refs/heads/{BRANCH}", made)
    with pytest.raises(GitError, match=REFUSED_BY_FSCK):
        await mirror.import_bundle(sandbox.bundle(BRANCH), BRANCH, expected=upstream.first)
    assert await mirror.branches() == {BRANCH: upstream.first}
    git(sandbox.folder, "reset", "--quiet", "--hard", upstream.first)
    good = commit(sandbox.folder, {"search.py": "1"})
    assert await mirror.import_bundle(sandbox.bundle(BRANCH), BRANCH, expected=upstream.first) == good


async def test_nothing_of_a_repository_is_executed(
    mirror: Mirror, upstream: Upstream, sandbox: Sandbox, tmp_path: Path
) -> None:
    """Hooks, filters, merge drivers and configured programs, of the repository and of the user's home, do not run."""
    owned = tmp_path / "owned"
    await mirror.reset_branch(BRANCH, upstream.first)
    for name in ("pre-push", "reference-transaction", "post-update", "pre-auto-gc"):
        hook = mirror.path / "hooks" / name
        hook.parent.mkdir(exist_ok=True)
        hook.write_text(f"#!/bin/sh\ntouch {owned}\n")
        hook.chmod(0o755)
    await sandbox.start(mirror, BRANCH)
    attributes = "* filter=evil merge=evil diff=evil\n"
    base = commit(sandbox.folder, {".gitattributes": attributes, "-rf": "1", "A": "1", "a": "2", "shop.py": "1"})
    await mirror.import_bundle(sandbox.bundle(BRANCH), BRANCH, expected=upstream.first)
    theirs = commit(sandbox.folder, {"shop.py": "2"})
    git(sandbox.folder, "branch", "other")
    await mirror.reset_branch("other", base)
    await mirror.import_bundle(sandbox.bundle("other"), "other", expected=base)
    git(sandbox.folder, "reset", "--quiet", "--hard", base)
    ours = commit(sandbox.folder, {"shop.py": "3"})
    await mirror.import_bundle(sandbox.bundle(BRANCH), BRANCH, expected=base)
    assert await mirror.conflicts(ours, theirs) == ["shop.py"]
    assert not owned.exists()


async def test_many_small_files_are_imported(mirror: Mirror, upstream: Upstream, sandbox: Sandbox) -> None:
    """100,000 files in one commit are imported."""
    await mirror.reset_branch(BRANCH, upstream.first)
    await sandbox.start(mirror, BRANCH)
    blobs = [f"blob\nmark :{number}\ndata 6\n{number:06}\n" for number in range(1, 101)]
    person = f"committer Ada <{PERSON['GIT_AUTHOR_EMAIL']}> 1 +0000\n"
    head = f"commit refs/heads/{BRANCH}\n{person}data 4\nmany\nfrom {upstream.first}\n"
    files = [f"M 100644 :{number % 100 + 1} d{number % 317}/f{number}\n" for number in range(100_000)]
    stream = "".join([*blobs, head, *files, "\n"])
    environment = {"PATH": os.environ["PATH"], **PERSON}
    words = ("git", "fast-import", "--quiet")
    await asyncio.to_thread(
        subprocess.run, words, cwd=sandbox.folder, input=stream, text=True, env=environment, check=True
    )
    made = git(sandbox.folder, "rev-parse", BRANCH)
    assert await mirror.import_bundle(sandbox.bundle(BRANCH), BRANCH, expected=upstream.first) == made
