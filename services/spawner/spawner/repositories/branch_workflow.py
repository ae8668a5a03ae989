"""Runs the steps that are due for branches: add a sandbox's commits, push, delete, merge on trial.

A completed step is written to the branch's record. After a crash, a step that is not recorded is repeated.
"""

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from typing import Final

from sandherd.backoff import Backoff
from sandherd.bus.lease import Lease
from sandherd.concurrency import run_until_first, sleep_aligned
from sandherd.contracts.events import ArtifactRef
from sandherd.contracts.states import BranchState
from sandherd.telemetry import logs
from spawner.live_state import LiveState
from spawner.repositories import branch_transitions
from spawner.repositories.branch_artifacts import BUNDLE, DIFF, BranchArtifacts
from spawner.repositories.branch_diff import branch_size, changed_lines, shown_path, write_diff
from spawner.repositories.branch_record import BranchRecord, ReceivedCommits, SignedCommits
from spawner.repositories.branch_transitions import DONE, Decide, outcome_of
from spawner.repositories.commit_signer import CommitSigner
from spawner.repositories.credential_file import host_of
from spawner.repositories.git import GitError, GitFault
from spawner.repositories.mirror import Mirror
from spawner.repositories.mirrors import Mirrors
from spawner.repositories.path_approval import PathApproval
from spawner.repositories.push_step import PushStep
from spawner.repositories.step_loop import run_steps
from spawner.repositories.trial_merges import find_overlaps
from spawner.repositories.work_queue import WorkQueue

_MAX_CONCURRENT: Final = 8
_MAX_CONCURRENT_OF_HOST: Final = 4
_MAX_CONCURRENT_OF_PROJECT: Final = 2
"""Maximum branches that are handled concurrently: in all, of one host, and of one project."""
_LEASE_CHECK_SECONDS: Final = 1.0
"""Seconds between checks whether the lease was acquired again."""
_MAX_SCRATCH_AGE: Final = timedelta(days=1)
"""Scratch folders that are older are removed. No step takes as long, so a killed spawner left them."""
_RETRY: Final = Backoff(1.0, 120.0, jitter=0.5)
"""The delays in seconds until the steps of a branch are retried."""
_MAX_DIFF_BYTES: Final = 16 * 1024 * 1024
"""Maximum bytes of a diff. A larger one is not stored."""
_log: Final = logs.get("branches")


class BranchWorkflow:
    """Runs due steps while it holds the lease: several branches concurrently, and the steps of each in order."""

    def __init__(
        self, live: LiveState, lease: Lease, mirrors: Mirrors, artifacts: BranchArtifacts, approval: Sequence[str],
        *, signer: CommitSigner | None = None,
    ) -> None:  # fmt: skip
        """`approval`: patterns of paths whose changes a user has to approve. `signer`: signs the sandboxes' commits."""
        self._live, self._lease, self._signer = live, lease, signer
        self._mirrors, self._artifacts, self._approval = mirrors, artifacts, PathApproval(approval)
        self._pushes = PushStep(live, mirrors, self._approval)
        self._queue = WorkQueue(
            self._try, _RETRY, at_once=_MAX_CONCURRENT, of_project=_MAX_CONCURRENT_OF_PROJECT,
            of_host=_MAX_CONCURRENT_OF_HOST, host_of=self._host_of,
        )  # fmt: skip
        live.branch_index.on_change(self._on_branch)

    async def run(self) -> None:
        """Run until cancelled."""
        await self._live.branch_index.complete.wait()
        await run_until_first(self._queue_at_lease(), self._queue.run())

    async def _queue_at_lease(self) -> None:
        """Each time the lease is acquired, queue the branches whose due steps the previous holder has not finished."""
        fence = 0
        while True:
            await self._lease.wait_held()
            if fence != self._lease.fence:
                fence = self._lease.fence
                await asyncio.to_thread(self._mirrors.remove_scratch, (self._live.now() - _MAX_SCRATCH_AGE).timestamp())
                for key, known in self._live.branch_index.items():
                    self._on_branch(key, known.view)
            await sleep_aligned(_LEASE_CHECK_SECONDS)

    def _host_of(self, key: str) -> str | None:
        known = self._live.branch_index.get(key)
        return host_of(known.view.url) if known else None

    def _on_branch(self, key: str, branch: BranchRecord) -> None:
        if branch.has_work and self._lease.held:
            self._queue.request(key)

    async def _try(self, key: str) -> bool:
        """Run all due steps of a branch; return whether to retry later."""
        return await run_steps(key, self._step, _log, (GitError,), self._record_delay)

    async def _record_delay(self, key: str, error: Exception) -> None:
        """Write into the branch's record why its step is retried later."""
        if isinstance(error, GitError):
            await self._change(key, partial(branch_transitions.delayed, reason=str(error), now=self._live.now()))

    async def _step(self, key: str) -> bool:
        """Run the next step; return whether there was one. Raises `GitError` if the step may succeed later."""
        self._lease.check()
        held = await self._live.branches.load(key)
        if held is None or not held.record.has_work:
            return False
        record = held.record
        if record.state is BranchState.DELETED:
            await self._change(key, _without_steps)
        elif record.delete_wanted:
            await self._change(key, await self._delete(record))
        elif record.received:
            await self._change(key, await self._add(record, record.received[0]))
        elif record.push_wanted:
            await self._change(key, await self._pushes.push(record))
        else:
            await self._change(key, await self._merge_on_trial(record))
        return True

    async def _change(self, key: str, decide: Decide) -> None:
        self._lease.check()
        await self._live.change_branch(key, decide)

    # --- steps ---------------------------------------------------------------------------------------------------

    async def _add(self, record: BranchRecord, commits: ReceivedCommits) -> Decide:
        """Check a bundle and add it to the branch in the mirror.

        The bundle is refused if it is invalid, or if the branch can't be restored any more.
        """
        now = self._live.now()
        try:
            mirror = await self._with_branch(record)
        except GitError as error:
            if error.fault is not GitFault.NOT_FOUND:
                raise
            return partial(branch_transitions.refused, commits=commits, reason=f"its branch is lost: {error}", now=now)
        added: str | None = None
        try:
            if await self._mirrors.has_already(mirror, record, commits.commit):
                with_objects = await self._mirrors.has_new_objects(mirror, record, commits)
                return partial(branch_transitions.unchanged, commits=commits, now=now, with_objects=with_objects)
            commit, with_objects = await self._import(mirror, record, commits)
            added = commit
            signed = await self._replacement(mirror, record, commits, commit)
            lines = await changed_lines(mirror, record.base_commit, commit)
            size = await branch_size(mirror, record.base_commit, commit, lines)
            diff = await self._store_diff(mirror, record, commit)
            await self._approval.cache(record, commit, lines)
        except GitError as failure:
            cause = await mirror.transient_if_removed(failure, added) if added else failure
            self._count("save", outcome_of(cause.fault))
            if not cause.permanent:
                raise cause from failure
            return partial(branch_transitions.refused, commits=commits, reason=str(cause), now=now)
        self._count("save", DONE)
        paths = [shown_path(path) for path in sorted(lines)]
        return partial(
            branch_transitions.saved, commits=commits, size=size, paths=paths, diff=diff, now=now, signed=signed,
            with_objects=with_objects,
        )  # fmt: skip

    async def _with_branch(self, record: BranchRecord) -> Mirror:
        """The mirror with the branch. Raises `GitError` for reasons that do not lie in the commits to be added."""
        try:
            return await self._mirrors.with_branch(record)
        except GitError as error:
            self._count("save", outcome_of(error.fault))
            raise

    async def _import(self, mirror: Mirror, record: BranchRecord, commits: ReceivedCommits) -> tuple[str, bool]:
        """Import a bundle; return the branch's new commit, and whether the bundle has objects of Git LFS."""

        async def accept(commit: str) -> str:
            if commit != commits.commit:
                raise GitError(GitFault.REFUSED, "the bundle has another commit than its event states")
            return await self._signer.signed(mirror, record, commit) if self._signer else commit

        await self._mirrors.check_size(mirror)
        async with self._mirrors.received_bundle(commits.bundle) as file:
            commit = await self._mirrors.import_saved(mirror, record, file, accept)
            return commit, await self._mirrors.has_objects(mirror, file)

    async def _replacement(
        self, mirror: Mirror, record: BranchRecord, commits: ReceivedCommits, commit: str
    ) -> SignedCommits | None:
        """A bundle to store in place of the sandbox's; None if that one has all commits, and none was signed."""
        if commit == commits.commit and not commits.partial:
            return None
        with self._mirrors.scratch() as folder:
            file = folder / "bundle"
            await mirror.write_bundle_of(record.branch, commit, file, since=record.base_commit)
            return SignedCommits(
                commit=commit, bundle=await self._artifacts.store(file, record.project, commits.task, BUNDLE)
            )

    async def _store_diff(self, mirror: Mirror, record: BranchRecord, commit: str) -> ArtifactRef | None:
        with self._mirrors.scratch() as folder:
            file = folder / "diff"
            await write_diff(mirror, record.base_commit, commit, file)
            if file.stat().st_size > _MAX_DIFF_BYTES:
                return None
            return await self._artifacts.store(file, record.project, record.name, DIFF)

    async def _merge_on_trial(self, record: BranchRecord) -> Decide:
        branches = list(self._live.branch_index.views())
        try:
            mirror = await self._mirrors.with_branch(record)
            overlaps = await find_overlaps(mirror, record, branches)
        except GitError as error:
            if not error.permanent:
                raise
            _log.warning("branches not compared", branch=record.key, error=str(error))
            overlaps = record.overlaps
        return partial(
            branch_transitions.merged_on_trial, commit=record.commit, overlaps=overlaps, now=self._live.now()
        )

    async def _delete(self, record: BranchRecord) -> Decide:
        now = self._live.now()
        mirror = self._mirrors.of(record.project, record.repository)
        try:
            if record.delete_wanted == "everywhere":
                await self._mirrors.delete_pushed(mirror, record)
            commit = (await mirror.branches()).get(record.branch)
            if commit is not None:
                await mirror.delete_branch(record.branch, expected=commit)
        except GitError as error:
            self._count("push", outcome_of(error.fault))
            if not error.permanent:
                raise
            return partial(branch_transitions.not_deleted, reason=str(error), now=now)
        return partial(branch_transitions.deleted, now=now)

    def _count(self, step: str, outcome: str) -> None:
        self._live.meters.count("sandherd_branch_steps_total", step=step, outcome=outcome)


def _without_steps(record: BranchRecord) -> BranchRecord:
    """A deleted branch without due steps."""
    return record.model_copy(update={"received": (), "push_wanted": False, "delete_wanted": None})
