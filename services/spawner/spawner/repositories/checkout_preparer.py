"""Prepares checkouts: fetches a task's repository, creates or finds its branch, and stores the branch for the sandbox.

The preparer runs beside the scheduler, which does not start a task with a repository before its checkout is prepared.
"""

import asyncio
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from datetime import datetime
from functools import partial
from typing import Final

from sandherd.backoff import Backoff
from sandherd.bus.lease import Lease, LeaseLostError
from sandherd.concurrency import KeyedLocks
from sandherd.contracts.events import ArtifactRef
from sandherd.contracts.failures import ErrorType
from sandherd.contracts.repositories import Checkout, Repository
from sandherd.contracts.states import BranchState, TaskState
from sandherd.telemetry import logs
from spawner.live_state import LiveState
from spawner.records.base_record import StoreUnavailableError
from spawner.records.quota import Quota
from spawner.repositories import branch_transitions
from spawner.repositories.branch_artifacts import BUNDLE, BranchArtifacts
from spawner.repositories.branch_choice import (
    WORKING_STATES,
    base_problem,
    branch_to_continue,
    is_current,
    is_fresh,
    new_branch_name,
    other_task_at_work,
)
from spawner.repositories.branch_names import Rules
from spawner.repositories.branch_record import BranchRecord, repository_key
from spawner.repositories.credential_file import host_of
from spawner.repositories.git import GitError, GitFault
from spawner.repositories.lfs import TAR, write_tar
from spawner.repositories.lfs_pointers import LfsPointer
from spawner.repositories.mirror import Mirror
from spawner.repositories.mirrors import Mirrors
from spawner.repositories.submodules import commit_ref
from spawner.repositories.work_queue import WorkQueue
from spawner.sandboxes.reconciler import FOR_NOW
from spawner.tasks import task_transitions as of_task
from spawner.tasks.task_record import TaskFacts, TaskRecord

_MAX_CONCURRENT: Final = 12
_MAX_CONCURRENT_OF_HOST: Final = 8
_MAX_CONCURRENT_OF_PROJECT: Final = 2
"""The maximum number of checkouts that are prepared concurrently: in all, of one host, and of one project."""
_UNEXPECTED_ERROR: Final = (
    "its branch could not be prepared because of an unexpected error (see the spawner's log); this is retried"
)
_MAX_RECORDS_MB: Final = 32
"""The maximum size of the records of one project's branches, in MiB."""
_RETRY: Final = Backoff(1.0, 60.0, jitter=0.5)
"""The delays in seconds until the preparation of a checkout is retried."""
_log: Final = logs.get("checkouts")


class CheckoutPreparer:
    """Prepares the checkouts of pending tasks concurrently, but never two checkouts of one task at once."""

    def __init__(
        self, live: LiveState, lease: Lease, mirrors: Mirrors, artifacts: BranchArtifacts,
        mounting_runtimes: Collection[str], *, rules: Rules,
    ) -> None:  # fmt: skip
        """`mounting_runtimes`: runtimes whose sandboxes see the mirrors. Other sandboxes get the branch as a bundle.

        `rules`: the rules for names of new branches.
        """
        self._rules = rules
        self._quota = Quota.of("branches", _MAX_RECORDS_MB)
        self._live, self._lease = live, lease
        self._mirrors, self._artifacts, self._mounting_runtimes = mirrors, artifacts, mounting_runtimes
        self._queue = WorkQueue(
            self._try,
            _RETRY,
            at_once=_MAX_CONCURRENT,
            of_project=_MAX_CONCURRENT_OF_PROJECT,
            of_host=_MAX_CONCURRENT_OF_HOST,
            host_of=self._host_of,
        )
        self._repository_locks: KeyedLocks[tuple[str, str]] = KeyedLocks()
        self._waiting: defaultdict[str, set[str]] = defaultdict(set)
        """Waiting tasks, by the key of what they wait for: a branch until its commits are added, or another task."""
        live.task_index.on_change(self._on_task)
        live.branch_index.on_change(self._on_branch)
        live.last_events.on_handled(self._request_waiting)

    def is_prepared(self, task: TaskRecord, now: datetime) -> bool:
        """Whether the task can be started. If it can't, request the preparation of its checkout."""
        if task.repository is None or self._has_checkout(task, now):
            return True
        self._queue.request(task.key)
        return False

    def _has_checkout(self, task: TaskRecord, now: datetime) -> bool:
        known = self._live.branch_index.get(f"{task.project}.{task.branch}")
        branch = known.view if known else None
        current = is_fresh(task, now) and is_current(task, branch, mounted=task.runtime in self._mounting_runtimes)
        return current and branch is not None and self._other_task_at_work(branch, task) is None

    def _other_task_at_work(self, branch: BranchRecord, task: TaskRecord) -> str | None:
        return other_task_at_work(branch, task.task, self._live.task_facts)

    def _host_of(self, key: str) -> str | None:
        known = self._live.task_facts(key)
        return host_of(known.repository) if known else None

    async def run(self) -> None:
        """Prepare the requested checkouts, until cancelled."""
        await self._queue.run()

    async def _try(self, key: str) -> bool:
        """Prepare a checkout; return whether to retry later."""
        try:
            try:
                await self._prepare(key)
            except GitError as error:
                return await self._record_failure(key, error)
        except LeaseLostError as error:
            _log.info("lease lost to another replica", lease=str(error))
        except FOR_NOW as error:
            _log.warning("checkout not prepared, retrying", task=key, error=repr(error))
            return True
        except Exception as error:  # noqa: BLE001  # one task must not block all others; it is retried
            _log.error("checkout preparation failed, retrying", task=key, exc_info=error)
            with suppress(*FOR_NOW):
                await self._live.change_task(key, partial(of_task.waiting_because, reason=_UNEXPECTED_ERROR))
            return True
        return False

    async def _record_failure(self, key: str, error: GitError) -> bool:
        """Fail the task if a retry can't succeed. Otherwise store why it waits, and return True."""
        self._count(branch_transitions.outcome_of(error.fault))
        if not error.permanent:
            reason = f"its repository is not available: {error}"
            await self._live.change_task(key, partial(of_task.waiting_because, reason=reason))
            _log.warning("repository not available, retrying", task=key, error=str(error))
            return True
        now = self._live.now()

        def decide(task: TaskRecord) -> TaskRecord:
            if task.state is not TaskState.PENDING:
                return task
            return of_task.failed(task, f"repository: {error}", ErrorType.REPOSITORY, now)

        await self._live.change_task(key, decide)
        return False

    async def _prepare(self, key: str) -> None:
        """Prepare the checkout of a pending task, or let the task wait until its branch is free."""
        self._lease.check()
        await self._live.read()
        held = await self._live.tasks.load(key)
        if held is None or held.record.state is not TaskState.PENDING or held.record.repository is None:
            return
        task, repository = held.record, held.record.repository
        if self._has_checkout(task, self._live.now()):
            return  # a repeated request: the checkout is prepared already
        branch = await self._branch(task, repository)
        if branch.received:
            self._waiting[branch.key].add(key)
            return
        if other := self._other_task_at_work(branch, task):
            self._waiting[f"{task.project}.{other}"].add(key)
            reason = f"{other} works on its branch {branch.branch}"
            await self._live.change_task(key, partial(of_task.waiting_because, reason=reason))
            return
        checkout = await self._checkout(task, branch)
        self._lease.check()
        begin = partial(branch_transitions.begun_by, task=task, now=self._live.now())
        await self._live.branches.change(branch.key, lambda record, _: begin(record))
        for stored in (task.checkout.bundle, task.checkout.lfs) if task.checkout else ():
            await self._artifacts.delete(stored)
        now = self._live.now()
        await self._live.change_task(
            key, partial(of_task.with_checkout, branch=branch.id, checkout=checkout, attempt=task.attempt, now=now)
        )
        self._count(branch_transitions.DONE)

    def _count(self, outcome: str) -> None:
        self._live.meters.count("sandherd_branch_steps_total", step="prepare", outcome=outcome)

    # --- the branch ----------------------------------------------------------------------------------------------

    async def _branch(self, task: TaskRecord, repository: Repository) -> BranchRecord:
        """The branch that the task works on. All attempts of a task work on the same branch."""
        if task.branch is not None:
            held = await self._live.branches.load(f"{task.project}.{task.branch}")
            if held is None or held.record.state is not BranchState.LIVE:
                raise GitError(GitFault.REFUSED, "the task's branch was deleted")
            return held.record
        name = repository_key(repository)
        mirror = await self._mirrors.fetch(task.project, repository)
        # One task at a time chooses its branch, so that each knows the branches of earlier ones.
        async with self._repository_locks.hold((task.project, name)):
            known = [view for view in self._live.branch_index.views() if view.project == task.project]
            known = [view for view in known if view.repository == name]
            branch = branch_to_continue(task, repository, known) or await self._create(task, repository, mirror, known)
            return await self._join(branch, task)

    async def _create(
        self, task: TaskRecord, repository: Repository, mirror: Mirror, known: Iterable[BranchRecord]
    ) -> BranchRecord:
        base = await self._mirrors.default_branch(repository, mirror)
        remote = await mirror.remote_branches()
        if base not in remote:
            raise GitError(GitFault.NOT_FOUND, f"there is no branch {base}")
        if problem := base_problem(base) or self._quota_problem(task.project):
            raise GitError(GitFault.REFUSED, problem)
        taken = {*remote, *(view.branch for view in known), *(view.remote_branch for view in known)}
        while True:
            name = new_branch_name(task, repository, taken, self._rules)
            await self._mirrors.check_branch(repository, name)
            record = branch_transitions.created(
                task, repository, branch=name, base=base, commit=remote[base], at=self._live.now()
            )
            self._lease.check()
            held, created = await self._live.branches.create(record)
            if created or held.record.life == task.life:
                await self._live.branches.flush(held)
                return held.record
            taken.add(name)

    def _quota_problem(self, project: str) -> str | None:
        used = self._live.branch_index.size_of(project)
        refusal = self._quota.refusal(project, used, self._live.branch_index.size())
        return refusal.reason if refusal else None

    async def _join(self, branch: BranchRecord, task: TaskRecord) -> BranchRecord:
        """Write the task into the branch's record, and the branch into the task's record."""
        now = self._live.now()
        held = await self._live.branches.change(
            branch.key, lambda record, _: branch_transitions.joined_by(record, task, now)
        )
        if held is None:
            raise StoreUnavailableError(f"{branch.key} was removed meanwhile")
        if held.record.state is not BranchState.LIVE:
            raise StoreUnavailableError(f"{branch.key} was {held.record.state} meanwhile")
        await self._live.change_task(task.key, partial(of_task.on_branch, branch=branch.id, life=task.life))
        return held.record

    # --- the checkout --------------------------------------------------------------------------------------------

    async def _checkout(self, task: TaskRecord, branch: BranchRecord) -> Checkout:
        mirror = await self._mirrors.with_branch(branch)
        submodules = await self._mirrors.submodules(mirror, branch, task.repository)
        objects = await self._mirrors.lfs_objects(mirror, branch, task.repository)
        mounted = task.runtime in self._mounting_runtimes
        submodule_refs = [commit_ref(one) for one in submodules]
        stored = None if mounted else await self._store(mirror, task, branch, submodule_refs)
        return Checkout(
            branch=branch.branch,
            base=branch.base,
            commit=branch.commit,
            base_commit=branch.base_commit,
            bundle=stored,
            owner=task.task if stored else None,
            submodules=tuple(submodules),
            lfs=None if mounted or not objects else await self._store_objects(mirror, task, objects),
        )

    async def _store(
        self, mirror: Mirror, task: TaskRecord, branch: BranchRecord, submodule_refs: Sequence[str]
    ) -> ArtifactRef:
        with self._mirrors.scratch() as folder:
            file = folder / "bundle"
            await mirror.write_bundle(branch.branch, file, base=branch.base, others=submodule_refs)
            return await self._artifacts.store(file, task.project, task.task, BUNDLE)

    async def _store_objects(self, mirror: Mirror, task: TaskRecord, objects: Sequence[LfsPointer]) -> ArtifactRef:
        with self._mirrors.scratch() as folder:
            file = folder / "objects.tar"
            await asyncio.to_thread(write_tar, mirror, objects, file)
            return await self._artifacts.store(file, task.project, task.task, TAR)

    # --- changes -------------------------------------------------------------------------------------------------

    def _on_task(self, key: str, task: TaskFacts) -> None:
        """Request the checkout of a task without an earlier attempt, since commits of that might still be received."""
        if task.needs_checkout and task.left is None and self._lease.held:
            self._queue.request(key)
        if task.state not in WORKING_STATES:
            self._request_waiting(key)

    def _on_branch(self, key: str, branch: BranchRecord) -> None:
        if not branch.received:
            self._request_waiting(key)

    def _request_waiting(self, key: str) -> None:
        """Request the checkouts of the tasks that wait for this branch or task."""
        for task in self._waiting.pop(key, ()):
            self._queue.request(task)
