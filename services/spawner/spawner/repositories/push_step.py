"""Pushes a branch. Uses another name if the repository has a branch of this name that the spawner did not push."""

from functools import partial

from spawner.live_state import LiveState
from spawner.repositories import branch_transitions
from spawner.repositories.branch_names import alternative_name, collides
from spawner.repositories.branch_record import BranchRecord
from spawner.repositories.branch_transitions import DONE, Decide, outcome_of
from spawner.repositories.git import GitError, GitFault
from spawner.repositories.mirror import Mirror
from spawner.repositories.mirrors import Mirrors
from spawner.repositories.path_approval import PathApproval


class PushStep:
    """The step that pushes a branch. The caller applies the returned decision to the record."""

    def __init__(self, live: LiveState, mirrors: Mirrors, approval: PathApproval) -> None:
        self._live, self._mirrors, self._approval = live, mirrors, approval

    async def push(self, record: BranchRecord) -> Decide:
        """Push the commit of the record. Raises `GitError` if the push may succeed later."""
        now = self._live.now()
        try:
            decide = await (
                self._after_earlier_push(record) if record.pushed == record.commit else self._before_push(record)
            )
            if decide is not None:
                return decide
            await self._mirrors.push(self._mirrors.of(record.project, record.repository), record)
        except GitError as error:
            self._live.meters.count("sandherd_branch_steps_total", step="push", outcome=outcome_of(error.fault))
            if not error.permanent:
                raise
            return await self._refused(record, error)
        self._live.meters.count("sandherd_branch_steps_total", step="push", outcome=DONE)
        return partial(branch_transitions.pushed, commit=record.commit, now=now)

    async def _after_earlier_push(self, record: BranchRecord) -> Decide:
        """The decision about a requested push of a commit that was pushed already: the remote may have changed."""
        pushed = partial(branch_transitions.pushed, commit=record.commit, now=self._live.now())
        return await self._after_conflict(record) or pushed

    async def _before_push(self, record: BranchRecord) -> Decide | None:
        """The decision to apply before the push or in place of the push; None if the branch may be pushed now."""
        mirror = await self._mirrors.with_branch(record)
        is_approved = record.approved == record.commit
        if not is_approved or record.pushed is None:
            await self._mirrors.refresh(mirror, record)
        if not is_approved:  # the base was fetched above, so its present commit is compared
            paths = await self._approval.paths(mirror, record, record.base)
            if paths:
                return partial(branch_transitions.needs_approval, paths=paths, now=self._live.now())
        return await self._before_first_push(mirror, record) if record.pushed is None else None

    async def _before_first_push(self, mirror: Mirror, record: BranchRecord) -> Decide | None:
        """The decision before the first push: choose a name that the repository does not have, and record the commit.

        If the response to the push is lost, the recorded commit shows that the spawner has pushed the remote branch.
        Names of the branches of other projects are not considered.
        """
        remote, now = await mirror.remote_branches(), self._live.now()
        remote_commit = remote.get(record.remote_branch)
        if remote_commit is not None and remote_commit in record.tried_commits:
            return partial(branch_transitions.pushed, commit=remote_commit, now=now)
        if record.pushed_as is None and collides(record.remote_branch, {name.casefold() for name in remote}):
            known = (view for view in self._live.branch_index.views() if view.project == record.project)
            taken = {*remote, *(view.branch for view in known if view.repository == record.repository)}
            name = alternative_name(record.branch, record.life, taken)
            return partial(branch_transitions.renamed, branch=name, now=now)
        if remote_commit is None and record.tried != record.commit:
            return partial(branch_transitions.push_begun, commit=record.commit, now=now)
        return None

    async def _refused(self, record: BranchRecord, error: GitError) -> Decide:
        """The decision after a refused push."""
        if error.fault is GitFault.CONFLICT:
            decision = await self._after_conflict(record)
            if decision is not None:
                return decision
        reason, now = str(error), self._live.now()
        return partial(branch_transitions.push_refused, reason=reason, code=error.fault.value, now=now)

    async def _after_conflict(self, record: BranchRecord) -> Decide | None:
        """The decision if the remote branch is not where the spawner pushed it last; None if it is.

        At the first push, another name is chosen; None if that was done before. Later there are three cases. The remote
        branch is at a later commit of this branch, because a spawner ended or lost its lease after the push: the push
        continues from there. Or a user has pushed to the remote branch. Or it was deleted, as forges do after a merge.
        """
        if record.pushed is None and record.pushed_as is not None:
            return None
        mirror = self._mirrors.of(record.project, record.repository)
        await self._mirrors.refresh(mirror, record)
        if record.pushed is None:
            return await self._before_first_push(mirror, record)
        remote, now = await mirror.remote_branches(), self._live.now()
        remote_commit = remote.get(record.remote_branch)
        if remote_commit is None:
            base = remote.get(record.base)
            merged = base is not None and await mirror.contains(base, record.pushed)
            return partial(branch_transitions.deleted_remotely, pushed=record.pushed, now=now, merged=merged)
        if remote_commit == record.pushed:
            return None
        is_own_push = (
            await mirror.has_commit(remote_commit)
            and await mirror.contains(record.commit, remote_commit)
            and await mirror.contains(remote_commit, record.pushed)
        )
        if is_own_push:
            return partial(branch_transitions.pushed, commit=remote_commit, now=now)
        return partial(branch_transitions.moved_remotely, remote_commit=remote_commit, now=now)
