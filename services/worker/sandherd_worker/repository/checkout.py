"""Checks a task's branch out as the work tree: in a repository of its own, without credentials and foreign hooks."""

import asyncio
import os
import shutil
import tempfile
import threading
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

from sandherd.contracts.errors import Code, ContractError
from sandherd.contracts.events import EventData
from sandherd.contracts.events.agent import AgentError
from sandherd.contracts.repositories import Checkout
from sandherd.contracts.repositories import Repository as TaskRepository
from sandherd_worker.access.artifact_client import ArtifactClient
from sandherd_worker.repository import lfs
from sandherd_worker.repository.commit_identity import HOOK, PARTIAL, CommitIdentity, settings_of
from sandherd_worker.repository.git import Git, GitError, GitRepository, NoGitError
from sandherd_worker.repository.object_copy import StoppedError, copy_objects
from sandherd_worker.repository.submodules import SubmoduleCheckout
from sandherd_worker.worker_resources import WorkerResources

PHASE: Final = "repository"
MARK: Final = "checked-out"
"""File in the state directory, created when the checkout is complete."""
_HEADS_PREFIX: Final = "refs/heads/"
_ORIGIN_PREFIX: Final = "refs/remotes/origin/"
_EXCLUDE_FILE: Final = (
    "# Written by Sandherd: what never is a part of the work.\n.sandherd-part-*\nnode_modules/\n__pycache__/\n.venv/\n"
)
_SHA256_HEX_LENGTH: Final = 64
_EXPIRED: Final = "it is stored for some days only: submit the task again"

Publish = Callable[[EventData], Awaitable[object]]


class CheckoutError(Exception):
    """The branch can't be checked out. The text gives the reason; `is_temporary` if another attempt may succeed."""

    def __init__(self, reason: str, *, is_temporary: bool) -> None:
        self.is_temporary = is_temporary
        super().__init__(reason)


async def check_out(
    wanted: TaskRepository, identity: CommitIdentity, resources: WorkerResources, publish: Publish, *, restored: bool
) -> bool:
    """Check the branch out, or continue it in a work tree that was restored from the previous attempt.

    Returns whether a restored work tree is still in use. Raises `CheckoutError`, `OSError`.
    """
    if wanted.checkout is None:
        raise CheckoutError("the spawner has not named the branch to check out", is_temporary=False)
    async with Git(resources) as git:
        run = _CheckoutRun(wanted, wanted.checkout, identity, resources, git)
        try:
            problem = await run.continue_restored() if restored else None
            if problem is not None:
                await publish(AgentError(error=f"the restored work tree can't be continued: {problem}", phase=PHASE))
                await asyncio.to_thread(
                    _move_contents, resources.assignment.work_dir, resources.assignment.previous_dir
                )
            if not restored or problem is not None:
                await run.check_out()
        except NoGitError as error:
            raise CheckoutError(str(error), is_temporary=False) from None
        except (GitError, StoppedError) as error:
            raise CheckoutError(f"can't check out {wanted.checkout.branch}: {error}", is_temporary=True) from None
        except ContractError as error:
            raise _bundle_error(wanted.checkout, error) from None
    (resources.assignment.state_dir / MARK).touch()
    return restored and problem is None


class _CheckoutRun:
    def __init__(
        self, wanted: TaskRepository, checkout: Checkout, identity: CommitIdentity, resources: WorkerResources, git: Git
    ) -> None:
        self._wanted, self._checkout, self._identity, self._git = wanted, checkout, identity, git
        self._resources, self._assignment = resources, resources.assignment
        self._folder = resources.assignment.work_dir / ".git"
        self._repository = GitRepository(git_dir=self._folder, work_tree=resources.assignment.work_dir)

    async def check_out(self) -> None:
        """Create the repository, and write the branch's files, which replace existing files."""
        await asyncio.to_thread(_remove, self._folder)
        kind = ("--object-format=sha256",) if len(self._checkout.commit) == _SHA256_HEX_LENGTH else ()
        await self._git.run(self._repository, "init", "--quiet", "--template=", *kind)
        if self._checkout.bundle is None:
            await self._write_files_while_copying(await self._mirror_refs())
        else:
            await asyncio.to_thread(self._configure, await self._take_objects())
            await self._take_lfs_objects()
            await self._write_files()
        settings = partial(settings_of, self._identity)
        await SubmoduleCheckout(self._git, self._repository, self._checkout.submodules, settings).check_out()

    async def _write_files(self, **variables: str) -> None:
        own = replace(self._repository, variables=variables)
        await self._git.run(own, "read-tree", "--reset", "-u", "HEAD")

    async def _write_files_while_copying(self, refs: Mapping[str, str]) -> None:
        """Write the files from the mirror's objects while the objects are copied, because both may take long."""
        failed = threading.Event()
        await asyncio.to_thread(self._configure, refs)
        copying = asyncio.create_task(self._copy(failed.is_set))
        try:
            await self._write_files(GIT_ALTERNATE_OBJECT_DIRECTORIES=str(self._assignment.repository / "objects"))
        except BaseException:  # raised again, after the thread of the copy has ended
            failed.set()
            await asyncio.wait([copying])
            raise
        await copying

    async def continue_restored(self) -> str | None:
        """Update the restored branch to contain the checkout's commit. Returns why that is impossible, or None."""
        branch, commit = f"{_HEADS_PREFIX}{self._checkout.branch}", self._checkout.commit
        if not self._folder.is_dir() or self._folder.is_symlink():
            return "it has no repository"
        try:
            await self._take_objects()
            await self._take_lfs_objects()
            tip = (await self._read("rev-parse", "--verify", "--end-of-options", f"{branch}^{{commit}}")).strip()
            if await self._contains(tip, commit):
                return None
            if not await self._contains(commit, tip):
                return f"its {self._checkout.branch} is at {tip}, and does not contain {commit}"
            if (await self._read("rev-parse", "--verify", "HEAD")).strip() != tip:
                return f"its HEAD is not at its {self._checkout.branch}, which has more commits by now"
            await self._git.run(self._repository, "read-tree", "-m", "-u", tip, commit)
            await self._git.run(self._repository, "update-ref", branch, commit, tip)
        except GitError as error:
            return str(error)
        return None

    async def _contains(self, commit: str, other: str) -> bool:
        """Whether `other` is an ancestor of `commit`, or the same commit."""
        arguments = ("merge-base", other, commit)
        return (await self._read(*arguments, accepted=frozenset({0, 1}))).strip() == other

    async def _read(self, *arguments: str, accepted: frozenset[int] = frozenset({0})) -> str:
        return (await self._git.run(self._repository, *arguments, accepted=accepted)).decode("utf-8", "replace")

    # --- objects

    async def _take_objects(self) -> Mapping[str, str]:
        """Add the objects of the mirror or the bundle; returns the refs of that mirror or bundle."""
        if self._checkout.bundle is None:
            refs = await self._mirror_refs()
            await self._copy()
            return refs
        with tempfile.TemporaryFile(dir=self._assignment.state_dir) as file:
            client = ArtifactClient(self._assignment, self._resources.line)
            await client.fetch(self._checkout.bundle, self._checkout.owner or self._assignment.sandbox, file)
            file.seek(0)
            return _refs(await self._git.run(self._repository, "bundle", "unbundle", "/proc/self/fd/0", stdin=file))

    async def _take_lfs_objects(self) -> None:
        """Add the objects of Git LFS that were stored for this checkout."""
        if self._checkout.lfs is None:
            return
        with tempfile.TemporaryFile(dir=self._assignment.state_dir) as file:
            client = ArtifactClient(self._assignment, self._resources.line)
            await client.fetch(self._checkout.lfs, self._checkout.owner or self._assignment.sandbox, file)
            file.seek(0)
            await asyncio.to_thread(lfs.unpack, file, self._folder)

    async def _copy(self, failed: Callable[[], bool] = lambda: False) -> None:
        stop, objects = self._resources.stop, self._folder / "objects"
        await asyncio.to_thread(
            copy_objects, self._assignment.repository, objects, lambda: stop.reason is not None or failed()
        )

    async def _mirror_refs(self) -> Mapping[str, str]:
        """The refs of the mirror that a clone would have. Raises `CheckoutError` if the mirror is not mounted."""
        mirror = self._assignment.repository
        if not (mirror / "objects").is_dir():
            raise CheckoutError(f"the repository is not mounted at {mirror}", is_temporary=False)
        mirror_repository = GitRepository(git_dir=mirror, work_tree=self._assignment.work_dir)
        base = self._checkout.base
        patterns = ("refs/tags", f"{_ORIGIN_PREFIX}{base}", f"{_HEADS_PREFIX}{base}")
        shown = await self._git.run(mirror_repository, "for-each-ref", "--format=%(objectname) %(refname)", *patterns)
        return _refs(shown)

    # --- settings

    def _configure(self, refs: Mapping[str, str]) -> None:
        """Write the refs, settings and exclude file of the repository, which is new and not in use by a process."""
        branch, base = f"{_HEADS_PREFIX}{self._checkout.branch}", self._checkout.base
        tip = refs.get(f"{_ORIGIN_PREFIX}{base}") or refs.get(f"{_HEADS_PREFIX}{base}") or self._checkout.base_commit
        found = {name: commit for name, commit in refs.items() if name.startswith("refs/tags/")}
        found |= {branch: self._checkout.commit, f"{_ORIGIN_PREFIX}{base}": tip}
        lines = "".join(f"{commit} {name}\n" for name, commit in found.items())
        (self._folder / "packed-refs").write_bytes(lines.encode("utf-8", "surrogateescape"))
        (self._folder / "HEAD").write_text(f"ref: {branch}\n")
        origin = self._folder / _ORIGIN_PREFIX
        origin.mkdir(parents=True, exist_ok=True)
        (origin / "HEAD").write_text(f"ref: {_ORIGIN_PREFIX}{base}\n")
        with (self._folder / "config").open("a") as file:
            file.write(settings_of(self._identity, self._wanted.url))
            mounted = self._checkout.bundle is None
            if mounted and any((self._assignment.repository / "objects" / "pack").glob("*.promisor")):
                file.write(PARTIAL)
            if self._wanted.lfs:
                file.write(
                    lfs.enable(self._folder, self._assignment.repository / "lfs" / "objects" if mounted else None)
                )
        if self._identity.co_author is not None:
            hook = self._folder / "hooks" / "prepare-commit-msg"
            hook.parent.mkdir(exist_ok=True)
            hook.write_text(HOOK)
            hook.chmod(0o755)
        (self._folder / "info").mkdir(exist_ok=True)
        (self._folder / "info" / "exclude").write_text(_EXCLUDE_FILE)


def _refs(shown: bytes) -> dict[str, str]:
    """The commits by the names of their refs, from lines in the format `COMMIT NAME`."""
    lines = (line.partition(" ") for line in shown.decode("utf-8", "surrogateescape").splitlines())
    return {name: commit for commit, _, name in lines if name}


def _remove(path: Path) -> None:
    """Remove a file or a folder, if it exists. Raises `OSError`."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _move_contents(work_dir: Path, folder: Path | None) -> None:
    """Move the work tree's files to `work` in `folder`, for the agent. Without one, delete them. Raises `OSError`."""
    aside = None if folder is None else folder / "work"
    if aside is not None:
        aside.mkdir(parents=True, exist_ok=True)
    for entry in list(os.scandir(work_dir)):
        if aside is None:
            _remove(Path(entry.path))
        else:
            shutil.move(entry.path, aside / entry.name)


def _bundle_error(checkout: Checkout, error: ContractError) -> CheckoutError:
    expired = f"; {_EXPIRED}" if error.problem.code is Code.NOT_FOUND else ""
    text = f"can't fetch the bundle of {checkout.branch}: {error}{expired}"
    return CheckoutError(text, is_temporary=error.problem.code is Code.UNAVAILABLE)
