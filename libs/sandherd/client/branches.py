"""Branches that tasks work on: list, find, push, merge, delete, and fetch them into a local repository."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final, Literal

from sandherd.client.errors import HerdError, validated
from sandherd.client.queries import SendRequest
from sandherd.client.task_files import TaskFiles
from sandherd.contracts import requests
from sandherd.contracts.errors import Code
from sandherd.contracts.names import SAFE_NAME_PATTERN, TASK_PREFIX
from sandherd.contracts.states import BranchState
from sandherd.lazy_imports import LazyModule

if TYPE_CHECKING:
    from sandherd.client.repositories import branch_fetch
    from sandherd.client.repositories.branch_fetch import FetchedBranch
    from sandherd.client.sandboxes.transfer import OnTransfer
else:  # on first use: most programs fetch no branches
    branch_fetch = LazyModule("sandherd.client.repositories.branch_fetch")

_BRANCH_ID: Final = re.compile(r"br-[0-9a-f]{20}")
_TASK_NAME: Final = re.compile(SAFE_NAME_PATTERN)
_MAX_BRANCHES_SHOWN: Final = 5
_SEE: Final = "see `sandherd branches list`"


class BranchOperations(TaskFiles):
    """The methods of `Herd` about branches. Every method raises `HerdError`.

    The parameter `name` is the name of a branch, its id, or the name of a task that works on it.
    """

    async def branches(
        self,
        *,
        limit: int = 100,
        cursor: str | None = None,
        branch: str | None = None,
        task: str | None = None,
        states: "Sequence[BranchState]" = (),
    ) -> "requests.BranchList":
        """A page of the project's branches, the last changed first: all, or those with this name, task and states."""
        filters = {"limit": limit, "cursor": cursor, "branch": branch, "task": task, "state": list(states)}
        return await self.connection.request(validated(requests.ListBranches, **filters))

    async def branch(self, name: str) -> "requests.BranchView":
        """One branch. If several branches have the name, the live one, or else the one that changed last.

        Raises `HerdError` if several are live.
        """
        return await find_branch(self.connection.request, name)

    async def push_branch(
        self, name: str, *, approved_commit: str | None = None, by: str | None = None
    ) -> "requests.BranchView":
        """Request that a branch is pushed as soon as possible; `branch.pushed` or `branch.push_refused` follows.

        `approved_commit` is the commit whose changes to protected paths are approved. Raises `HerdError` (`conflict`)
        if it is no longer the commit of the branch.
        """
        view = await self.branch(name)
        request = validated(requests.PushBranch, branch=view.id, approved_commit=approved_commit, requested_by=by)
        return await self.connection.request(request)

    async def open_pull_request(
        self, name: str, *, ready: bool = False, by: str | None = None
    ) -> "requests.BranchView":
        """Request that the branch's pull request is opened or updated, with `ready` also made ready for review.

        `branch.pull_request_opened`, `branch.pull_request_updated` or `branch.pull_request_refused` follows.
        """
        view = await self.branch(name)
        return await self.connection.request(
            validated(requests.OpenPullRequest, branch=view.id, ready=ready, requested_by=by)
        )

    async def merge_branch(
        self, name: str, *, commit: str | None = None, by: str | None = None
    ) -> "requests.BranchView":
        """Request that the branch's pull request is merged once its forge permits it; `branch.merged` follows.

        Raises `HerdError` (`conflict`) if `commit` is given and is no longer the commit of the branch.
        """
        view = await self.branch(name)
        return await self.connection.request(
            validated(requests.MergeBranch, branch=view.id, commit=commit, requested_by=by)
        )

    async def delete_branch(
        self, name: str, *, where: 'Literal["everywhere", "here"]' = "everywhere", by: str | None = None
    ) -> "requests.BranchView":
        """Delete a branch in the herd and, if it was pushed, in its repository. With `here`, only in the herd."""
        view = await self.branch(name)
        return await self.connection.request(
            validated(requests.DeleteBranch, branch=view.id, where=where, requested_by=by)
        )

    async def fetch_branch(
        self, name: str, into: "Path | str" = ".", *, on_progress: "OnTransfer | None" = None
    ) -> "FetchedBranch":
        """Fetch a branch into the local repository that contains `into`, as a branch of the same name.

        A local branch is only created or fast-forwarded; the work tree is not changed. Objects are checked first, and
        nothing of the branch is executed. Raises `HerdError`: `conflict` if the local branch is checked out or has
        other commits, or if the repository does not have the base; `refused` if the bundle has unexpected contents.
        """
        view = await self.branch(name)
        reference = view.bundle
        if reference is None:
            raise _nothing_saved_error(view)

        async def download(out: IO[bytes]) -> None:
            try:
                await self.artifact(reference, out, on_progress=on_progress)
            except HerdError as error:
                if error.problem.code is not Code.NOT_FOUND:
                    raise
                raise _expired_error(view) from None

        return await branch_fetch.fetch(view.branch, view.commit, Path(into), download)

    async def branch_diff(self, name: str, out: IO[bytes]) -> None:
        """Write the diff between the base commit and the branch into an empty file, in the format of `git apply`.

        Raises `HerdError` (`too_large`) if it is too large to be stored.
        """
        view = await self.branch(name)
        if view.diff is not None:
            await self.artifact(view.diff, out)
        elif view.files_changed:
            raise HerdError.of(
                Code.TOO_LARGE,
                f"the diff of {view.branch} is too large to be stored",
                field="diff",
                remedy=f"fetch the branch with `sandherd branches fetch {view.id}`, and compare it with git",
            )


async def find_branch(send: SendRequest, name: str) -> "requests.BranchView":
    """The branch with this name or id, or of this task. Raises `HerdError`."""
    kinds: list[Literal["branch", "task"]] = ["branch"] if not _TASK_NAME.fullmatch(name) else ["branch", "task"]
    if name.startswith(TASK_PREFIX):
        kinds.reverse()
    if _BRANCH_ID.fullmatch(name):
        kinds = ["branch"]
    for kind in kinds:
        if branches := await _branches_of(send, kind, name):
            return _select_branch(branches, name)
    raise HerdError.of(
        Code.NOT_FOUND,
        f"there is no branch {name[:200]}, and no task of that name with a branch",
        field="branch",
        remedy=_SEE,
    )


async def _branches_of(send: SendRequest, kind: Literal["branch", "task"], name: str) -> "list[requests.BranchView]":
    filters = {kind: name}
    try:
        page: requests.BranchList = await send(validated(requests.ListBranches, **filters))
    except HerdError as error:
        if error.problem.code is not Code.NOT_FOUND:
            raise
        return []
    return page.branches


def _select_branch(branches: "Sequence[requests.BranchView]", name: str) -> "requests.BranchView":
    """The live branch, else the branch that changed last. Raises `HerdError` if several are live."""
    live = [view for view in branches if view.state is BranchState.LIVE]
    if len(live) > 1:
        branch_list = ", ".join(f"{view.id} of {view.repository}" for view in live[:_MAX_BRANCHES_SHOWN])
        raise HerdError.of(
            Code.INVALID_FIELD,
            f"several repositories have a branch {name}: {branch_list}",
            field="branch",
            remedy="name it by its id",
        )
    return (live or branches)[0]


def _expired_error(view: "requests.BranchView") -> HerdError:
    remedy = "fetch it from its repository with git" if view.pushed_commit == view.commit else "push it, and fetch that"
    if view.local:
        remedy = "continue it with a task (`sandherd run --branch`): its next commits are stored again with the others"
    return HerdError.of(
        Code.NOT_FOUND,
        f"the commits of {view.branch} are no longer stored as a bundle, which expires after 7 days",
        field="branch",
        remedy=remedy,
    )


def _nothing_saved_error(view: "requests.BranchView") -> HerdError:
    reason = view.problem or "its tasks have saved no commits"
    return HerdError.of(
        Code.CONFLICT,
        f"there is nothing to fetch of {view.branch}: {reason}",
        field="branch",
        remedy=f"see `sandherd branches show {view.id}`",
    )
