"""Fetches a task's branch, and nothing else, from a bundle into a local repository.

The work tree and the checked out branch are not changed. Nothing of the bundle is executed, because its commits are
from a sandbox. Git before 2.46 does not check objects that it fetches from a bundle. So the branch is fetched into a
temporary repository, from there into a second one, where git checks the objects (git-fsck(1)), and only then into the
user's repository. Both temporary repositories are deleted.
"""

import os
import shlex
import tempfile
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from pydantic import TypeAdapter, ValidationError

from sandherd.client.errors import HerdError
from sandherd.client.repositories.bundle_header import InvalidBundleError, read_header
from sandherd.client.repositories.git import GitFailedError, run_git, text_of
from sandherd.client.repositories.local import HEADS, branch_commit, find_repository, refuse_incomplete
from sandherd.contracts.errors import Code
from sandherd.contracts.repositories import BranchName, Commit

_FETCH: Final = (
    "fetch", "--quiet", "--no-tags", "--no-write-fetch-head", "--no-auto-maintenance", "--no-recurse-submodules",
    "--no-prune",
)  # fmt: skip
_FSCK_OPTIONS: Final = {"transfer.fsckObjects": "true", "fetch.fsckObjects": "true"}
_BRANCH_NAME: Final[TypeAdapter[str]] = TypeAdapter(BranchName)
_COMMIT_ID: Final[TypeAdapter[str]] = TypeAdapter(Commit)
_ANCESTRY_STATUSES: Final = frozenset({0, 1, 128})
"""The accepted exit statuses of `merge-base --is-ancestor`; 128 means that a commit does not exist."""
Download = Callable[[IO[bytes]], Awaitable[None]]
"""A function that writes the bundle into an empty file."""


@dataclass(frozen=True)
class FetchedBranch:
    """A branch of a local repository, after a fetch."""

    branch: str
    commit: str
    """The commit of the branch in the herd; the local branch may have later commits."""
    repository: Path
    """The folder of the local repository."""
    previous: str | None
    """The commit of the local branch before the fetch; None if the branch did not exist."""
    changed: bool
    """Whether the local branch was created or moved."""


@dataclass(frozen=True)
class _FetchRequest:
    """The branch to fetch, its required commit, the local repository, and the branch's current commit there."""

    branch: str
    commit: str
    top: Path
    previous: str | None

    @property
    def ref(self) -> str:
        return f"{HEADS}{self.branch}"


async def fetch(branch: str, commit: str, into: Path, download: Download) -> FetchedBranch:
    """Fetch a branch, which must be at `commit`, into the repository that contains the folder `into`.

    If the local branch already contains `commit`, nothing is fetched. Raises `HerdError`: `conflict` if the local
    branch has other commits or is checked out, `refused` if the bundle contains more than this branch, or malformed
    objects.
    """
    _check_value(_BRANCH_NAME, branch, "branch")
    _check_value(_COMMIT_ID, commit, "commit")
    top, _ = await find_repository(into)
    await refuse_incomplete(top)
    request = _FetchRequest(branch, commit, top, await branch_commit(top, branch))
    if request.previous is not None and await _is_descendant(top, request.previous, commit, of_user=True):
        return FetchedBranch(branch, commit, top, request.previous, changed=False)
    await _refuse_checked_out(request)
    with tempfile.TemporaryDirectory(prefix="sandherd-") as folder:
        bundle = Path(folder) / "bundle"
        with bundle.open("w+b") as file:
            await download(file)
            file.seek(0)
            _check_header(file, request)
        await _verify(bundle, request)
        await _fetch_checked(bundle, request)
    return FetchedBranch(branch, commit, top, request.previous, changed=True)


async def _is_descendant(folder: Path, commit: str, ancestor: str, *, of_user: bool) -> bool:
    """Whether `commit` is `ancestor`, or a descendant of it."""
    arguments = ("merge-base", "--is-ancestor", "--end-of-options", ancestor, commit)
    status, _ = await run_git(folder, *arguments, of_user=of_user, accepted=_ANCESTRY_STATUSES)
    return status == 0


async def _refuse_checked_out(request: _FetchRequest) -> None:
    """Raise `HerdError` if a work tree has the branch checked out, or if the branch is a symbolic ref."""
    for entry in (await text_of(request.top, "worktree", "list", "--porcelain")).split("\n\n"):
        lines = entry.splitlines()
        if f"branch {request.ref}" in lines:
            folder_of_work_tree = lines[0].removeprefix("worktree ")
            raise _conflict_error(
                f"{request.branch} is checked out in {folder_of_work_tree}",
                f"switch to another branch there, as with `git -C {shlex.quote(folder_of_work_tree)} switch --detach`",
            )
    symbolic = ("symbolic-ref", "--quiet", "--end-of-options", request.ref)
    if await text_of(request.top, *symbolic, accepted=frozenset({0, 1})):
        raise _conflict_error(
            f"{request.branch} is a symbolic ref in {request.top}",
            f"delete it with `git symbolic-ref --delete {request.ref}`",
        )


def _check_header(file: IO[bytes], request: _FetchRequest) -> None:
    """Raise `HerdError` unless the bundle has this branch at this commit, and no other ref."""
    try:
        header = read_header(file)
    except InvalidBundleError as error:
        raise _refused_error(request, str(error)) from None
    if header.refs != {request.ref: request.commit}:
        raise _refused_error(request, f"it does not have exactly this branch at {request.commit[:12]}")


async def _verify(bundle: Path, request: _FetchRequest) -> None:
    try:
        await run_git(request.top, "bundle", "verify", str(bundle))
    except GitFailedError as error:
        raise HerdError.of(
            Code.CONFLICT,
            f"{request.top} does not have the commits from which {request.branch} begins ({error.problem.message})",
            field="into",
            remedy="fetch its base there first (`git fetch`), or name the repository that the task began from",
        ) from None


async def _fetch_checked(bundle: Path, request: _FetchRequest) -> None:
    unchecked, checked = bundle.parent / "unchecked", bundle.parent / "checked"
    refspec = f"{request.ref}:{request.ref}"
    try:
        for target in (unchecked, checked):
            await _create_quarantine(target, request.top)
        await run_git(unchecked, *_FETCH, "--end-of-options", str(bundle), refspec, of_user=False)
        await run_git(
            checked, *_FETCH, "--end-of-options", str(unchecked), refspec, of_user=False, config=_FSCK_OPTIONS
        )
    except GitFailedError as error:
        raise _refused_error(request, error.problem.message) from None
    if await branch_commit(checked, request.branch, of_user=False) != request.commit:
        raise _refused_error(request, f"it is not at {request.commit[:12]}")
    await _refuse_other_commits(checked, request)
    try:
        await run_git(request.top, *_FETCH, "--end-of-options", str(checked), refspec)
    except GitFailedError as error:
        name = shlex.quote(request.branch)
        remedy = f"correct that, then fetch again: `sandherd branches fetch {name}`"
        raise _conflict_error(error.problem.message, remedy) from None


async def _refuse_other_commits(quarantine: Path, request: _FetchRequest) -> None:
    """Raise `HerdError` unless the local branch can be fast-forwarded."""
    if request.previous is None or await _is_descendant(quarantine, request.commit, request.previous, of_user=False):
        return
    raise _conflict_error(
        f"the branch {request.branch} in {request.top} has commits that the herd's branch does not have",
        f"rename your branch, and fetch again: `git branch -m {shlex.quote(request.branch)} NAME`",
    )


async def _create_quarantine(quarantine: Path, top: Path) -> None:
    """Create an empty bare repository that can also read the objects of the local repository."""
    objects = await text_of(top, "rev-parse", "--path-format=absolute", "--git-path", "objects")
    kind = await text_of(top, "rev-parse", "--show-object-format")
    init = ("init", "--quiet", "--bare", "--template=", f"--object-format={kind}", "--end-of-options", str(quarantine))
    await run_git(quarantine.parent, *init, of_user=False)
    alternates = quarantine / "objects" / "info" / "alternates"
    alternates.write_bytes(os.fsencode(f"{objects}\n"))


def _check_value(kind: TypeAdapter[str], value: str, field: str) -> None:
    try:
        kind.validate_python(value)
    except ValidationError:
        raise HerdError.of(
            Code.REFUSED, f"the {field} {value[:80]!r} is not valid", field=field, remedy="see `sandherd branches list`"
        ) from None


def _refused_error(request: _FetchRequest, reason: str) -> HerdError:
    return HerdError.of(
        Code.REFUSED,
        f"the bundle of {request.branch} is refused: {reason}",
        field="bundle",
        remedy="nothing of it was stored here; see `sandherd branches show`",
    )


def _conflict_error(message: str, remedy: str) -> HerdError:
    return HerdError.of(Code.CONFLICT, message, field="branch", remedy=remedy)
