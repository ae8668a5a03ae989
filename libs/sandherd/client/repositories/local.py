"""Finds the base branch of a local repository, and writes it as a bundle (git-bundle(1)) to upload."""

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from sandherd.client.errors import HerdError, validated
from sandherd.client.repositories.git import GitFailedError, run_git, text_of
from sandherd.client.repositories.source import RepositorySource
from sandherd.contracts.errors import Code

HEADS: Final = "refs/heads/"
_UNSAFE_CHARACTERS: Final = re.compile(r"[^A-Za-z0-9_.-]+")
_MAX_LABEL_LENGTH: Final = 100
_MAX_BRANCHES_SHOWN: Final = 5
_EXAMINE_SECONDS: Final = 300.0
_PARTIAL_CLONE_SETTINGS: Final = r"^(remote\..*\.promisor|extensions\.partialclone)$"
_STATUS_COMMAND: Final = (
    "status",
    "--porcelain",
    "-z",
    "--untracked-files=normal",
    "--ignore-submodules=dirty",
    "--no-renames",
)


@dataclass(frozen=True)
class LocalRepository:
    """A repository of this machine from which a task begins."""

    source: RepositorySource
    top: Path
    """The folder of the work tree, or of a bare repository."""
    base: str
    """The branch to begin from."""
    commit: str
    """The branch's commit."""
    uncommitted: int
    """The number of changed or new files that are not committed. They are not uploaded."""

    @property
    def label(self) -> str:
        """The name of the repository's folder, with only the characters that a label may have."""
        name = self.top.name.removesuffix(".git")
        return _UNSAFE_CHARACTERS.sub("-", name)[:_MAX_LABEL_LENGTH].strip("-") or "repository"


async def examine(source: RepositorySource) -> LocalRepository:
    """Find the repository that contains the source's path, and its base branch. Nothing is changed.

    Raises `HerdError` for a folder without a repository, a shallow or partial clone, and an unknown base branch.
    """
    folder = Path(source.path or ".")
    top, bare = await find_repository(folder)
    await refuse_incomplete(top)
    base = source.base or await _current_branch(top)
    commit = await _commit_of(top, base)
    return LocalRepository(source, top, base, commit, 0 if bare else await _count_uncommitted_paths(top))


async def find_repository(folder: Path) -> tuple[Path, bool]:
    """The folder of the repository that contains a folder, and whether it is bare. Raises `HerdError`."""
    if not folder.is_dir():
        raise _error(f"{folder} is not a folder", "path", "name a folder in a git repository")
    try:
        is_bare = await text_of(folder, "rev-parse", "--is-bare-repository") == "true"
        option = "--absolute-git-dir" if is_bare else "--show-toplevel"
        return Path(await text_of(folder, "rev-parse", option)), is_bare
    except GitFailedError as error:
        raise _error(
            f"{folder} is not in a git repository that can be used ({error.problem.message})",
            "path",
            "name a folder of one, or its URL; for files without git there is --dir",
        ) from None


async def refuse_incomplete(top: Path) -> None:
    """Raise `HerdError` for a shallow or partial clone, because a bundle of it would not be complete."""
    if await text_of(top, "rev-parse", "--is-shallow-repository") == "true":
        raise _error(
            f"{top} is a shallow clone, which has only a part of its history",
            "path",
            f"complete it with `git -C {top} fetch --unshallow`, or name the repository's URL",
        )
    if await text_of(top, "config", "--name-only", "--get-regexp", _PARTIAL_CLONE_SETTINGS, accepted=frozenset({0, 1})):
        raise _error(
            f"{top} is a partial clone, which has only a part of its objects",
            "path",
            "clone it again without --filter, or name the repository's URL",
        )


async def write_bundle(repository: LocalRepository, out: IO[bytes], limit: int | None) -> None:
    """Write the base branch with its history as a bundle into an empty file, and seek to the file's beginning.

    Raises `HerdError`, also if the bundle has more than `limit` bytes.
    """
    try:
        await run_git(
            repository.top, "bundle", "create", "--quiet", "-", "--end-of-options", HEADS + repository.base,
            out=out, file_bytes=limit,
        )  # fmt: skip
    except GitFailedError:
        if limit is None or os.fstat(out.fileno()).st_size < limit:
            raise
        raise _too_large(repository, limit) from None
    if limit is not None and os.fstat(out.fileno()).st_size > limit:
        raise _too_large(repository, limit)
    out.seek(0)


async def branch_commit(top: Path, branch: str, *, of_user: bool = True) -> str | None:
    """The commit of a local branch; None if there is no such branch."""
    commit = await text_of(
        top, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{HEADS}{branch}^{{commit}}",
        of_user=of_user, accepted=frozenset({0, 1}),
    )  # fmt: skip
    return commit or None


async def _current_branch(top: Path) -> str:
    ref = await text_of(top, "symbolic-ref", "--quiet", "HEAD", accepted=frozenset({0, 1}))
    if not ref.startswith(HEADS):
        raise _error(
            f"HEAD of {top} is detached: no branch is checked out",
            "base",
            "name the branch to begin from with --base (`base:` in a file of tasks)",
        )
    return ref.removeprefix(HEADS)


async def _commit_of(top: Path, base: str) -> str:
    """The commit of the base branch. Raises `HerdError` for an invalid name or an unknown branch."""
    try:
        validated(RepositorySource, path=str(top), base=base)
    except HerdError as error:
        raise _error(f"{base}: {error.problem.message}", "base", "name another branch with --base") from None
    if commit := await branch_commit(top, base):
        return commit
    listed = await text_of(top, "for-each-ref", "--format=%(refname)", f"--count={_MAX_BRANCHES_SHOWN + 1}", HEADS)
    branches = [name.removeprefix(HEADS) for name in listed.splitlines()]
    if not branches:
        raise _error(f"{top} has no commit yet", "base", "commit first")
    shown = ", ".join(branches[:_MAX_BRANCHES_SHOWN]) + (", …" if branches[_MAX_BRANCHES_SHOWN:] else "")
    raise _error(f"{top} has no branch {base}; there is: {shown}", "base", "name one of them with --base")


async def _count_uncommitted_paths(top: Path) -> int:
    _, output = await run_git(top, *_STATUS_COMMAND, seconds=_EXAMINE_SECONDS)
    return output.count(b"\0")  # every path ends with a NUL, because there are no renames, which have two paths


def _too_large(repository: LocalRepository, limit: int) -> HerdError:
    return HerdError.of(
        Code.TOO_LARGE,
        f"{repository.base} of {repository.top} has more than {limit} bytes as a bundle, the maximum size of an upload",
        field="path",
        remedy="name the repository's URL, or increase SANDHERD_MAX_FILE_MB of the herd",
    )


def _error(message: str, field: str, remedy: str) -> HerdError:
    return HerdError.of(Code.INVALID_FIELD, message, field=field, remedy=remedy)
