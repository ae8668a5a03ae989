"""Saves a task's branch: commits the agent's uncommitted changes, and stores the commits as a bundle."""

import asyncio
import tempfile
from collections.abc import Sequence
from typing import IO, Final

from sandherd.concurrency import SHORT_CLEANUP_SECONDS, run_until_first
from sandherd.contracts.events.access import AgentBranchSaved
from sandherd.contracts.repositories import Checkout
from sandherd.contracts.specs import TaskSpec
from sandherd_worker.redaction import Redactor
from sandherd_worker.repository.checkout import MARK
from sandherd_worker.repository.commit_identity import identity_of
from sandherd_worker.repository.git import Git, GitError, GitRepository, NoGitError, OutputTooLargeError
from sandherd_worker.repository.lfs import NewObjects
from sandherd_worker.repository.submodules import unsaved_submodules
from sandherd_worker.repository.uncommitted_changes import (
    CommitContext,
    OmissionNotes,
    UncommittedChanges,
    message_of,
    repository_in,
)
from sandherd_worker.work_snapshot import SHARE_OF_FREE_SPACE, SHARE_OF_GRACE
from sandherd_worker.worker_resources import WorkerResources

COMMIT_SECONDS: Final = 120.0
"""How long committing the uncommitted changes may take. A program that the agent's repository names may hang."""
SAVE_SECONDS: Final = 300.0
"""How long saving the branch may take."""
_MIN_SECRET_BYTES: Final = 8
"""The minimum size of a secret that prevents the commit of a file. A shorter secret may be in any file by chance."""
_BUNDLE_MEDIA_TYPE: Final = "application/x-git-bundle"
_OUT_OF_TIME: Final = "the sandbox had to end before the branch was saved"


class BranchSaver:
    """Saves the branch of one task, any number of times. Errors in the agent's repository become part of the event."""

    def __init__(self, spec: TaskSpec, resources: WorkerResources, redactor: Redactor | None = None) -> None:
        """The redactor must know the task's secrets; by default it is that of the emitter."""
        self._resources, self._assignment, self._emitter = resources, resources.assignment, resources.emitter
        self._task_repository = spec.repository
        self._checkout = None if spec.repository is None else spec.repository.checkout
        self._identity = identity_of(spec)
        text = (redactor or resources.emitter.redactor).text(spec.text)
        self._message = message_of(text, resources.assignment.task, self._identity)
        values = [spec.env[name].encode() for name in spec.secret_env]
        self._secrets = tuple(value for value in values if len(value) >= _MIN_SECRET_BYTES)
        self._last_event: AgentBranchSaved | None = None
        self._save_lock = asyncio.Lock()

    async def save(self) -> AgentBranchSaved | None:
        """Save the branch if it was checked out, and publish the event if it differs from the last one.

        Returns the event that was published last. Raises `SpoolError`.
        """
        if self._checkout is None or not (self._assignment.state_dir / MARK).exists():
            return None
        async with self._save_lock:
            with tempfile.TemporaryFile(dir=self._assignment.state_dir) as file:
                event = await self._save_in_time(self._checkout, file)
                if event.commit is not None and event.bundle is None:
                    file.seek(0)
                    event = event.model_copy(
                        update={"bundle": await self._emitter.store_file(file, _BUNDLE_MEDIA_TYPE)}
                    )
            if event != self._last_event:
                self._last_event = event
                await self._emitter.emit(event, use_reserve=True)
        return self._last_event

    async def _save_in_time(self, checkout: Checkout, file: IO[bytes]) -> AgentBranchSaved:
        """Save the branch, with a new bundle in `file`. Returns the event; if that failed, `left_out` has the error."""
        found: list[AgentBranchSaved] = []

        async def save() -> None:
            async with Git(self._resources) as git, asyncio.timeout(SAVE_SECONDS):
                found.append(await _Saving(self, git, checkout, file).run())

        late = self._resources.stop.terminated(self._assignment.stop_grace * SHARE_OF_GRACE)
        try:
            await run_until_first(save(), late, again_after=SHORT_CLEANUP_SECONDS)
        except TimeoutError:
            return AgentBranchSaved(branch=checkout.branch, left_out=f"saving it took longer than {SAVE_SECONDS:.0f} s")
        except (GitError, NoGitError, OSError) as error:
            return AgentBranchSaved(branch=checkout.branch, left_out=f"the branch could not be saved: {error}")
        return found[0] if found else AgentBranchSaved(branch=checkout.branch, left_out=_OUT_OF_TIME)

    @property
    def limit(self) -> int:
        """The maximum size of a bundle."""
        return min(self._assignment.max_work_bytes, int(self._resources.spool.free_bytes * SHARE_OF_FREE_SPACE))

    @property
    def commits_rest(self) -> bool:
        """Whether uncommitted changes are committed."""
        return self._task_repository is not None and self._task_repository.commit_rest

    @property
    def last(self) -> AgentBranchSaved | None:
        """The event that was published last."""
        return self._last_event

    def rest(self, checkout: Checkout) -> CommitContext:
        """The context of the commit of uncommitted changes."""
        return CommitContext(
            checkout=checkout,
            identity=self._identity,
            message=self._message,
            max_file_bytes=self.limit,
            secrets=self._secrets,
        )

    @property
    def with_lfs(self) -> bool:
        """Whether objects of Git LFS are saved."""
        return self._task_repository is not None and self._task_repository.lfs

    def lfs_objects(self, git: Git) -> NewObjects:
        """The new objects of Git LFS in the agent's repository."""
        return NewObjects(git, self.repository, self._identity)

    @property
    def repository(self) -> GitRepository:
        """The agent's repository."""
        return repository_in(self._assignment.work_dir)


class _Saving:
    """One try to save the branch."""

    def __init__(self, saver: BranchSaver, git: Git, checkout: Checkout, file: IO[bytes]) -> None:
        self._saver, self._git, self._checkout, self._file = saver, git, checkout, file
        self._repository = saver.repository
        self._branch = f"refs/heads/{checkout.branch}"
        self._notes = OmissionNotes()

    async def run(self) -> AgentBranchSaved:
        """Save the branch; returns the event. Raises `GitError`, `NoGitError`, `OSError`."""
        branch_tip = await self._read("rev-parse", "--verify", "--quiet", f"{self._branch}^{{commit}}", may_fail=True)
        if not branch_tip:
            return self._event(left_out=f"its repository has no branch {self._checkout.branch} any more")
        tip = await self._commit_changes(branch_tip)
        await self._note_omitted_commits(tip)
        if tip == self._checkout.commit:
            return self._event(left_out=self._notes.text())
        last = self._saver.last
        if last is not None and last.commit == tip and last.bundle is not None:
            return last.model_copy(update={"left_out": self._notes.text()})
        return await self._save_bundle(tip, branch_tip)

    async def _commit_changes(self, tip: str) -> str:
        if not self._saver.commits_rest:
            return tip
        rest = UncommittedChanges(self._git, self._repository, self._saver.rest(self._checkout), self._notes)
        try:
            async with asyncio.timeout(COMMIT_SECONDS):
                return await rest.commit(tip)
        except TimeoutError:
            self._notes.add(f"what was not committed: it took longer than {COMMIT_SECONDS:.0f} s")
        except (GitError, OSError) as error:
            self._notes.add(f"what was not committed: {error}")
        return tip

    async def _note_omitted_commits(self, tip: str) -> None:
        """Note what the bundle lacks: commits of other branches, and commits that a rewritten history has lost."""
        unmerged_branches = await self._read(
            "for-each-ref", "--format=%(refname:short)", f"--no-merged={tip}", "refs/heads"
        )
        if unmerged_branches:
            names = unmerged_branches.split("\n")
            self._notes.add(f"commits of other branches ({len(names)}), the first of them {names[0][:200]}")
        if self._checkout.submodules:
            await self._note_submodules()
        found = await self._read("merge-base", "--end-of-options", self._checkout.commit, tip, may_fail=True)
        if found != self._checkout.commit:
            self._notes.add(f"the history was rewritten: it does not contain {self._checkout.commit} any more")

    async def _note_submodules(self) -> None:
        """Note changes inside of submodules: a branch has only the ids of their commits."""
        changed = await unsaved_submodules(self._git, self._repository, self._checkout.commit)
        if changed:
            text = f"commits and changes inside of submodules ({len(changed)}), the first of them {changed[0][:200]!r}"
            self._notes.add(text)

    async def _save_bundle(self, tip: str, branch_tip: str) -> AgentBranchSaved:
        """Write the bundle of a commit, without the changes committed here if it is too large. Returns the event."""
        limit = self._saver.limit
        try:
            await self._bundle(limit, await self._lfs_objects(tip))
        except OutputTooLargeError:
            if tip == branch_tip:
                return self._event(left_out=f"the commits have more than the limit of {limit} bytes")
            await self._read("update-ref", self._branch, branch_tip, tip)
            self._notes.add(f"what was not committed: with it the bundle has more than the limit of {limit} bytes")
            if branch_tip == self._checkout.commit:
                return self._event(left_out=self._notes.text())
            return await self._save_bundle(branch_tip, branch_tip)
        count = await self._read("rev-list", "--count", f"{self._checkout.base_commit}..{tip}")
        return self._event(
            commit=tip, commits=int(count), committed_rest=tip != branch_tip, left_out=self._notes.text()
        )

    async def _lfs_objects(self, tip: str) -> Sequence[str]:
        """The ref of the objects of Git LFS that the commits need, if the task wants them."""
        if not self._saver.with_lfs:
            return ()
        ref = await self._saver.lfs_objects(self._git).commit(self._checkout.base_commit, tip)
        return () if ref is None else (ref,)

    async def _bundle(self, limit: int, others: Sequence[str]) -> None:
        self._file.seek(0)
        self._file.truncate()
        since = f"^{self._checkout.base_commit}"
        await self._git.run(
            self._repository,
            "bundle",
            "create",
            "--quiet",
            "-",
            self._branch,
            *others,
            since,
            into=self._file,
            limit=limit,
        )

    def _event(self, **fields: object) -> AgentBranchSaved:
        return AgentBranchSaved.model_validate({"branch": self._checkout.branch, **fields})

    async def _read(self, *arguments: str, may_fail: bool = False) -> str:
        """The output of a git command. With `may_fail`, exit status 1 or 128 is not an error."""
        accepted = frozenset({0, 1, 128}) if may_fail else frozenset({0})
        return (await self._git.run(self._repository, *arguments, accepted=accepted)).decode("utf-8", "replace").strip()
