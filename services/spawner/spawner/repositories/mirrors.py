"""The mirrors of all repositories. A branch is fetched into its mirror, or restored there from stored bundles.

A mirror is a cache: the commits in a branch's record can be restored from the repository and the last bundle.
"""

import asyncio
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Final

from sandherd.contracts.events import ArtifactRef
from sandherd.contracts.repositories import Repository, Submodule
from sandherd.telemetry import logs
from spawner.repositories.branch_artifacts import ArtifactMissingError, BranchArtifacts
from spawner.repositories.branch_record import BranchRecord, ReceivedCommits, repository_key
from spawner.repositories.git import DEFAULT_LIMITS, GitError, GitFault, GitLimits
from spawner.repositories.lfs import LfsObjects, has_objects, remove_unused, restore_objects, take_objects
from spawner.repositories.lfs_pointers import LfsPointer
from spawner.repositories.mirror import NO_COMMIT, Accept, Mirror
from spawner.repositories.mirror_gc import collect_garbage
from spawner.repositories.mirror_limits import UNLIMITED, MirrorLimits, collection_is_due
from spawner.repositories.mirror_paths import SCRATCH, folder_bytes, mirror_path, mirrors_of, scratch_folder
from spawner.repositories.mirror_seed import mirrors_beside, seed
from spawner.repositories.repository_hosts import RepositoryHosts
from spawner.repositories.submodules import SubmoduleFetcher

_MIB: Final = 1024 * 1024
_log: Final = logs.get("mirrors")
MAX_BUNDLE: Final = 1024 * _MIB
"""Maximum bytes of a bundle."""
FreeSpace = Callable[[str], Awaitable[None]]
"""Removes the mirrors of a project that are not needed."""


class Mirrors:
    """One mirror for each repository of each project, in this folder. Methods raise `GitError`."""

    def __init__(
        self,
        folder: Path,
        hosts: RepositoryHosts,
        artifacts: BranchArtifacts,
        max_mb: int,
        limits: MirrorLimits = UNLIMITED,
        *,
        max_lfs_mb: int = 1024,
        blobless: bool = False,
        shared: bool = False,
    ) -> None:
        """`max_mb`: the maximum size of one mirror. `limits`: the limits of all mirrors of a project.

        `blobless`: mirrors are fetched without files (see `Mirror`). `shared`: a new mirror begins with the objects of
        another project's mirror of the same repository.
        """
        self._shared = shared
        self.folder, self._hosts, self._artifacts = folder, hosts, artifacts
        self._submodules = SubmoduleFetcher(hosts)
        self._blobless = blobless
        self._lfs = LfsObjects(hosts, max_lfs_mb * _MIB)
        self.limits = limits
        self._git_limits: GitLimits = replace(DEFAULT_LIMITS, file_bytes=max_mb * _MIB)
        self._mirrors: dict[Path, Mirror] = {}
        self._full_since: dict[Path, tuple[str, float]] = {}
        """The refs of mirrors that were too large even after a garbage collection, with the monotonic time of that."""
        self._free_space: FreeSpace | None = None

    def on_full(self, free_space: FreeSpace) -> None:
        """Call `free_space(project)` from now on before a new mirror would exceed the project's maximum."""
        self._free_space = free_space

    @contextmanager
    def scratch(self) -> Iterator[Path]:
        """A temporary folder for large files (see `scratch_folder`)."""
        with scratch_folder(self.folder) as folder:
            yield folder

    def remove_scratch(self, before: float) -> None:
        """Remove the scratch folders that were last changed before this time, in seconds since the epoch."""
        for folder in self.folder.glob(f"{SCRATCH}*"):
            with suppress(FileNotFoundError):
                if folder.stat().st_mtime < before:
                    shutil.rmtree(folder)

    def of(self, project: str, repository: str) -> Mirror:
        """The mirror of a repository, by the name under which its project's tasks share it."""
        # Only the spawner may enter this folder. Sandboxes read mirrors where a runtime mounts them.
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return self.at(mirror_path(self.folder, project, repository))

    def at(self, path: Path) -> Mirror:
        """The mirror at this path."""
        mirror = self._mirrors.get(path)
        if mirror is None:
            mirror = self._mirrors[path] = Mirror(path, self._git_limits, blobless=self._blobless)
        return mirror

    def existing(self) -> Mapping[str, Sequence[Path]]:
        """The mirrors that exist, by project. It blocks."""
        if not self.folder.is_dir():
            return {}
        projects = sorted(path.name for path in self.folder.iterdir() if not path.name.startswith(SCRATCH))
        mirrors = {project: mirrors_of(self.folder, project) for project in projects}
        return {project: paths for project, paths in mirrors.items() if paths}

    async def remove(self, path: Path) -> None:
        """Remove a mirror."""
        await self.at(path).remove()
        self._mirrors.pop(path, None)

    async def fetch(self, project: str, repository: Repository) -> Mirror:
        """Fetch the current branches of the repository into its mirror, and return the mirror."""
        mirror = self.of(project, repository_key(repository))
        if not mirror.path.exists():
            await self._require_space(project)
            if self._shared and repository.url is not None:
                await self._seed(mirror, repository.url)
        if repository.url is not None:
            await self._fetch(mirror, repository.url)
        elif repository.bundle is not None:
            async with self._bundle(repository.bundle) as file:
                await mirror.import_base(file, repository.base or "")
        await self.check_size(mirror)  # branches that were overwritten or deleted leave their objects
        mirror.mark_used()
        return mirror

    async def _seed(self, mirror: Mirror, url: str) -> None:
        """Copy the objects of another project's mirror. If that fails, all objects are fetched from the repository."""
        for path in (await asyncio.to_thread(mirrors_beside, mirror.path))[:1]:
            try:
                if await seed(mirror, self.at(path), self._hosts, url):
                    _log.info("mirror initialized from that of another project", directory=str(mirror.path))
            except GitError as error:
                _log.info("mirror of another project unusable, fetching everything", error=str(error))

    async def _require_space(self, project: str) -> None:
        """Raise `GitError` if the project's mirrors reach a limit, even after unneeded mirrors were removed."""
        if await self._limit_problem(project) and self._free_space is not None:
            await self._free_space(project)
        if (problem := await self._limit_problem(project)) is not None:
            raise GitError(GitFault.REFUSED, f"{problem}; delete branches of repositories that are no longer used")

    async def _limit_problem(self, project: str) -> str | None:
        number = len(await asyncio.to_thread(mirrors_of, self.folder, project))
        if number >= self.limits.number:
            return f"the project has {number} mirrors of repositories, the maximum (SANDHERD_MAX_MIRRORS)"
        size = await asyncio.to_thread(folder_bytes, self.folder / project)
        if size >= self.limits.total_bytes:
            return f"the project's mirrors have {size // _MIB} MiB, the maximum (SANDHERD_MAX_MIRRORS_MB)"
        return None

    async def check_branch(self, repository: Repository, branch: str) -> None:
        """Raise `GitError` if the branch is to be pushed, and the repository protects it."""
        if repository.url is not None and repository.push:
            await self._hosts.check_branch(repository.url, branch)

    async def default_branch(self, repository: Repository, mirror: Mirror) -> str:
        """The base branch of a task: the one that it names, else the repository's default branch."""
        if repository.base is not None:
            return repository.base
        if repository.url is None:
            raise GitError(GitFault.REFUSED, "a local repository needs a base branch")
        return await self._hosts.use(repository.url, mirror.default_branch)

    async def with_branch(self, record: BranchRecord) -> Mirror:
        """The mirror, with the branch at the commit of its record. The commit is restored if the mirror lacks it."""
        mirror = self.of(record.project, record.repository)
        await self._set_promisor(mirror, record.url)
        at = (await mirror.branches()).get(record.branch)
        if at == record.commit:
            await self._complete(mirror, record)
            mirror.mark_used()
            return mirror
        if not (mirror.path.exists() and await mirror.has_commit(record.commit)):
            await self._restore(mirror, record)
        await mirror.reset_branch(record.branch, record.commit)
        await self._complete(mirror, record)
        mirror.mark_used()
        return mirror

    async def _fetch(self, mirror: Mirror, url: str) -> None:
        await self._set_promisor(mirror, url)
        await self._hosts.use(url, mirror.fetch)

    async def _set_promisor(self, mirror: Mirror, url: str | None) -> None:
        """Set the remote from which a partial mirror fetches missing objects, with the current credential."""
        if url is not None and await asyncio.to_thread(mirror.is_partial):
            mirror.promisor = await self._hosts.remote(url)

    async def _complete(self, mirror: Mirror, record: BranchRecord) -> None:
        """Fetch the missing files of the branch and its base into a partial mirror."""
        if record.url is not None and mirror.promisor is not None:
            tip = (await mirror.remote_branches()).get(record.base, record.base_commit)
            commits = (record.commit, record.base_commit, tip)
            await self._hosts.use(record.url, partial(mirror.complete, commits=commits))

    async def submodules(
        self, mirror: Mirror, record: BranchRecord, repository: Repository | None
    ) -> Sequence[Submodule]:
        """Fetch the submodules of the branch's commit into the mirror, if a task wants them, and return them."""
        if repository is None or not repository.submodules:
            return ()
        submodules = await self._submodules.fetch(mirror, record.commit, record.url, repository.submodules)
        await self.check_size(mirror)
        return submodules

    async def lfs_objects(
        self, mirror: Mirror, record: BranchRecord, repository: Repository | None
    ) -> Sequence[LfsPointer]:
        """Fetch the Git LFS objects of the branch's commit into the mirror, if a task wants them, and return them."""
        if repository is None or not repository.lfs or record.url is None:
            return ()
        restore = partial(self._restore_objects, mirror, record)
        objects = await self._lfs.fetch(mirror, record.commit, record.url, restore)
        await self.check_size(mirror)
        return objects

    async def import_saved(
        self, mirror: Mirror, record: BranchRecord, bundle: Path, accept: Accept | None = None
    ) -> str:
        """Continue the branch with a bundle of a sandbox. Returns its new commit, which `accept` may choose."""
        return await mirror.import_bundle(
            bundle, record.branch, expected=record.commit, unsigned=record.unsigned, accept=accept,
            also=partial(take_objects, mirror),
        )  # fmt: skip

    async def _restore_objects(self, mirror: Mirror, record: BranchRecord) -> None:
        """Restore the objects of Git LFS that are not uploaded yet, from the bundles that are still stored."""
        for commits in record.objects_in:
            try:
                async with self._bundle(commits.bundle) as file:
                    await restore_objects(mirror, file)
            except GitError as error:
                if not error.permanent:
                    raise
                # The caller reports the objects that are still missing.

    @asynccontextmanager
    async def received_bundle(self, bundle: ArtifactRef) -> AsyncIterator[Path]:
        """A bundle of a sandbox, as a file."""
        async with self._bundle(bundle) as file:
            yield file

    async def has_already(self, mirror: Mirror, record: BranchRecord, commit: str) -> bool:
        """Whether the branch contains a commit of a sandbox, or the signed form of the commit. Raises `GitError`.

        It is not enough that the mirror has the commit, because a killed spawner may have left it there.
        """
        if not await mirror.has_commit(commit):
            return False
        unsigned = record.unsigned
        try:
            if await mirror.contains(record.commit, commit):
                return True
            has_unsigned = unsigned is not None and await mirror.has_commit(unsigned)
            return has_unsigned and await mirror.contains(str(unsigned), commit)
        except GitError as error:
            raise await mirror.transient_if_removed(error, commit) from error

    async def has_objects(self, mirror: Mirror, bundle: Path) -> bool:
        """Whether a bundle of a sandbox has objects of Git LFS."""
        return await has_objects(mirror, bundle)

    async def has_new_objects(self, mirror: Mirror, record: BranchRecord, commits: ReceivedCommits) -> bool:
        """Whether a bundle without new commits has objects of Git LFS that the branch still needs for a push.

        False if the branch's commit is pushed, if the record names a bundle with the objects, or if the bundle is that
        of a push by the git proxy, which never has objects.
        """
        is_recorded = any(one.commit == commits.commit for one in record.objects_in)
        if commits.partial or is_recorded or record.pushed == record.commit:
            return False
        try:
            async with self._bundle(commits.bundle) as file:
                return await has_objects(mirror, file)
        except GitError as error:
            if not error.permanent:
                raise
            return False  # the bundle is lost or invalid, which does not matter: it adds no commit

    async def check_size(self, mirror: Mirror) -> None:
        """Raise `GitError` if the mirror exceeds its maximum size, even after its garbage was collected."""
        if await asyncio.to_thread(mirror.size_bytes) <= self._git_limits.file_bytes:
            self._full_since.pop(mirror.path, None)
            return
        await asyncio.to_thread(remove_unused, mirror)
        refs, now = await mirror.run("for-each-ref"), monotonic()
        if collection_is_due(self._full_since.get(mirror.path), refs, now):
            await collect_garbage(mirror)
        if await asyncio.to_thread(mirror.size_bytes) > self._git_limits.file_bytes:
            self._full_since[mirror.path] = (refs, now)
            limit = self._git_limits.file_bytes // _MIB
            raise GitError(
                GitFault.TOO_LARGE, f"the mirror exceeds its maximum of {limit} MiB (SANDHERD_MAX_REPOSITORY_MB)"
            )

    async def refresh(self, mirror: Mirror, record: BranchRecord) -> None:
        """Fetch the current branches of the record's repository, with the files of the branch and its base."""
        await self._fetch(mirror, _url(record))
        await self._complete(mirror, record)

    async def fetch_ref(self, mirror: Mirror, record: BranchRecord, ref: str) -> None:
        """Fetch the commits of a ref of the record's repository."""
        await self._hosts.use(_url(record), partial(mirror.fetch_ref, ref=ref))

    async def push(self, mirror: Mirror, record: BranchRecord) -> None:
        """Push the commit of the record if the repository's branch is where it was pushed last.

        The commit is pushed by its id, as another step may have reset the mirror's branch to an earlier commit. Before
        that, the commits of submodules are looked up on their forges, and the objects of Git LFS are uploaded.
        """
        url, base_and_commit = _url(record), (record.base_commit, record.commit)
        if await self._submodules.check(mirror, *base_and_commit, url):
            await self.check_size(mirror)
        await self._lfs.upload(mirror, *base_and_commit, url, partial(self._restore_objects, mirror, record))
        expected = record.pushed or NO_COMMIT
        push = partial(mirror.push, branch=record.remote_branch, expected=expected, commit=record.commit)
        await self._hosts.use(url, push)

    async def delete_pushed(self, mirror: Mirror, record: BranchRecord) -> None:
        """Delete the repository's branch if it is at the commit of the last push, or of an unfinished first push."""
        expected = record.pushed or record.tried
        if expected is None:
            return
        delete = partial(mirror.delete_remote_branch, branch=record.remote_branch, expected=expected)
        try:
            await self._hosts.use(_url(record), delete)
        except GitError as error:
            if record.pushed is not None or error.fault is not GitFault.CONFLICT:
                raise
            # The first push was not completed, so the repository's branch is one of another user.

    async def _restore(self, mirror: Mirror, record: BranchRecord) -> None:
        """Restore the record's commit: its base from the repository, the commits after it from the last bundle."""
        if record.origin is None:
            await self._fetch(mirror, _url(record))
        else:
            async with self._bundle(record.origin) as file:
                await mirror.import_base(file, record.base)
        if record.bundle is not None:
            await self._complete(mirror, record.model_copy(update={"commit": record.base_commit}))
            await mirror.reset_branch(record.branch, record.base_commit)
            async with self._bundle(record.bundle) as file:
                at_base = record.model_copy(update={"commit": record.base_commit, "unsigned": None})
                await self.import_saved(mirror, at_base, file)
        if not await mirror.has_commit(record.commit):
            raise GitError(GitFault.NOT_FOUND, f"commit {record.commit[:12]} of {record.branch} is no longer available")

    @asynccontextmanager
    async def _bundle(self, reference: ArtifactRef) -> AsyncIterator[Path]:
        with self.scratch() as folder, (folder / "bundle").open("w+b") as file:
            try:
                await self._artifacts.read(reference, file, MAX_BUNDLE)
            except ArtifactMissingError as error:
                raise GitError(GitFault.NOT_FOUND, str(error)) from None
            file.flush()
            yield Path(file.name)


def _url(record: BranchRecord) -> str:
    if record.url is None:
        raise GitError(GitFault.REFUSED, "a local repository is not pushed: fetch the branch into it")
    return record.url
