"""Merges in a bare repository: whether they are possible, and by which method."""

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tests.doubles.forges.bare_repository import BareRepository, GitError

Method = Literal["merge", "squash", "rebase"]


@dataclass(frozen=True)
class Trial:
    """The outcome of git merge-tree: a tree, or the files in conflict."""

    tree: str | None
    conflicts: tuple[str, ...] = ()


def try_merge(repository: BareRepository, base: str, head: str) -> Trial:
    """Merge two commits without a branch or a work tree."""
    try:
        return Trial(repository.run("merge-tree", "--write-tree", "--name-only", "-z", base, head).split("\0")[0])
    except GitError as error:
        names = error.stdout.split("\0\0")[0].split("\0")[1:]
        if not names:
            raise
        return Trial(None, tuple(names))


def merge(repository: BareRepository, base: str, head: str, method: Method, message: str) -> str | None:
    """The commit that a branch at `base` has to move to; none if there is a conflict."""
    if method == "rebase":
        return _rebase(repository, base, head)
    tree = try_merge(repository, base, head).tree
    if tree is None:
        return None
    return repository.write(tree, [base, head] if method == "merge" else [base], message)


def _rebase(repository: BareRepository, base: str, head: str) -> str | None:
    commits = repository.between(base, head)
    with tempfile.TemporaryDirectory() as folder:
        tree = str(Path(folder) / "tree")
        repository.run("worktree", "add", "--quiet", "--detach", tree, base)
        try:
            if commits:
                repository.run("-C", tree, "cherry-pick", "--allow-empty", *commits)
            return repository.run("-C", tree, "rev-parse", "HEAD")
        except GitError:
            return None
        finally:
            repository.run("worktree", "remove", "--force", tree)
