"""The objects of Git LFS in mirrors: fetched for checkouts, received from sandboxes, and uploaded before a push.

An object is the file `lfs/objects/AA/BB/OID` of a mirror, as in git-lfs. The lock and maximum size of mirrors apply.
"""

import asyncio
import hashlib
import os
import shutil
import tarfile
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from spawner.repositories.git import GitError, GitFault, RemoteRepository, in_repository, run_git
from spawner.repositories.lfs_pointers import (
    LfsPointer,
    by_oid,
    contradiction,
    listed_objects,
    pointers_in,
    size_problem,
    small_blobs,
)
from spawner.repositories.mirror import FETCH, Mirror
from spawner.repositories.repository_hosts import RepositoryHosts

if TYPE_CHECKING:
    from spawner.repositories.lfs_server import LfsServer

REF: Final = "refs/sandherd/lfs"
"""A ref in a sandbox's bundle. The files of its commit are the objects, and each is named by its SHA-256."""
TAR: Final = "application/x-tar"
_ANY_STATUS: Final = frozenset({0, 1, 128})
_READ_ONLY: Final = 0o444
_MAX_BLOBS_PER_READ: Final = 20_000
"""Maximum small blobs that one git command reads, which are at most 20 MiB."""
_GRACE_SECONDS: Final = 3600.0
"""An object that was needed within this time is not removed, because it may belong to a checkout that has not begun."""
_TRANSFER_SECONDS: Final = 900.0
"""The maximum time of all transfers of one step. The next step does not transfer complete objects again."""
Restore = Callable[[], Awaitable[None]]
"""Restores to the mirror the objects that sandboxes saved, if their bundles are still stored."""


class LfsObjects:
    """The objects of all mirrors. Methods raise `GitError`."""

    def __init__(self, hosts: RepositoryHosts, max_bytes: int) -> None:
        """`max_bytes`: the maximum size of the objects of one checkout."""
        self._hosts, self._max_bytes = hosts, max_bytes

    async def fetch(
        self, mirror: Mirror, commit: str, url: str, restore: Restore | None = None
    ) -> Sequence[LfsPointer]:
        """Store in the mirror the objects that the files of a commit need, and return them.

        `restore` is called if the mirror lacks some of the objects, because the server may not have these yet.
        """
        listed = await mirror.run("ls-tree", "-r", "-z", "--full-tree", "--end-of-options", commit)
        blobs = [line.partition("\t")[0].split(" ")[2] for line in listed.split("\0") if line]
        pointers = await _pointers(mirror, blobs)
        if (problem := contradiction(pointers.values())) is not None:
            raise GitError(GitFault.REFUSED, problem)
        if (problem := size_problem(pointers, self._max_bytes)) is not None:
            raise GitError(GitFault.TOO_LARGE, problem)
        wanted = by_oid(pointers.values())
        for one in wanted:
            _touch(_object_file(mirror, one.oid))
        if _missing(mirror, wanted) and restore is not None:
            await restore()
        if missing := _missing(mirror, wanted):
            await self._use(url, lambda server: _download(mirror, server, missing))
        return wanted

    async def upload(self, mirror: Mirror, base: str, commit: str, url: str, restore: Restore | None = None) -> None:
        """Upload the objects that the commits since `base` need and the server does not have.

        Commits of the repository's branches are left out, because the server has their objects. `restore` is called if
        the mirror lacks an object. An object that no sandbox has saved is an error. The exception is a server without
        Git LFS if the mirror has none of the objects, because the pointers may be files of another purpose.
        """
        listed = await mirror.run(
            "rev-list", "--objects", "--no-object-names", commit, "--not", base, "--remotes=origin"
        )
        wanted = by_oid((await _pointers(mirror, listed.split())).values())
        if not wanted:
            return
        for one in wanted:
            _touch(_object_file(mirror, one.oid))
        try:
            await self._use(url, lambda server: _upload(mirror, server, wanted, restore))
        except GitError as error:
            stored = [one for one in wanted if _object_file(mirror, one.oid).exists()]
            if stored or error.fault is not GitFault.NOT_FOUND:
                raise

    async def _use(self, url: str, command: "Callable[[LfsServer], Awaitable[None]]") -> None:
        from spawner.repositories.lfs_server import LfsServer, new_session

        async def run(remote: RemoteRepository) -> None:
            async with new_session() as session, asyncio.timeout(_TRANSFER_SECONDS):
                await command(LfsServer(remote, session, self._hosts.origins | self._hosts.lfs_origins))

        try:
            await self._hosts.use(url, run)
        except TimeoutError:
            problem = f"Git LFS: the transfers took longer than {_TRANSFER_SECONDS:.0f} s, and are continued later"
            raise GitError(GitFault.UNAVAILABLE, problem) from None


def write_tar(mirror: Mirror, objects: Iterable[LfsPointer], file: Path) -> None:
    """Write the objects as a tar file, each with its SHA-256 as its name. It blocks."""
    with tarfile.open(file, "w") as archive:
        for one in objects:
            archive.add(_object_file(mirror, one.oid), arcname=one.oid, recursive=False)


def remove_unused(mirror: Mirror, *, every: bool = False) -> None:
    """Remove the objects that no step has needed for an hour; with `every`, remove all objects. It blocks.

    An object that is needed again is fetched from the server, or restored from a sandbox's bundle if only that has it.
    """
    if every:
        shutil.rmtree(mirror.path / "lfs", ignore_errors=True)
        return
    oldest = time.time() - _GRACE_SECONDS
    for file in (mirror.path / "lfs" / "objects").glob("*/*/*"):
        with suppress(FileNotFoundError):
            if file.stat().st_mtime < oldest:
                file.unlink()


async def has_objects(mirror: Mirror, bundle: Path) -> bool:
    """Whether a sandbox's bundle has objects. Raises `GitError`."""
    arguments = ("bundle", "list-heads", str(bundle), REF)
    _, heads = await run_git(*in_repository(mirror.path), *arguments, limits=mirror.limits, accepted=_ANY_STATUS)
    return bool(heads.strip())


async def restore_objects(mirror: Mirror, bundle: Path) -> None:
    """Store the objects of a sandbox's bundle whose commits are in the mirror already. Raises `GitError`."""
    async with mirror.writing(), mirror.quarantine() as quarantine:
        await take_objects(mirror, bundle, quarantine)


async def take_objects(mirror: Mirror, bundle: Path, quarantine: Path) -> None:
    """Store the objects of a sandbox's bundle, if it has any, after a check of their SHA-256. Raises `GitError`.

    The caller holds the mirror's lock. The new objects together may not exceed the maximum size of a mirror, because a
    small bundle can have large objects.
    """
    if not await has_objects(mirror, bundle):
        return
    git_dir = in_repository(quarantine)
    await run_git(*git_dir, *FETCH, "--end-of-options", str(bundle), f"+{REF}:{REF}", limits=mirror.limits)
    _, printed = await run_git(*git_dir, "ls-tree", "-z", "--long", REF, limits=mirror.limits)
    new = [
        one for one in listed_objects(printed.decode("utf-8", "replace")) if not _object_file(mirror, one.oid).exists()
    ]
    if sum(one.size for one in new) > mirror.limits.file_bytes:
        problem = f"the objects of Git LFS have more than {mirror.limits.file_bytes} bytes"
        raise GitError(GitFault.TOO_LARGE, f"{problem} (SANDHERD_MAX_REPOSITORY_MB)")
    for oid in (one.oid for one in new):
        async with _new_object(mirror, oid) as part:
            with part.open("wb") as file:
                await run_git(*git_dir, "cat-file", "blob", f"{REF}:{oid}", limits=mirror.limits, into=file)
            with part.open("rb") as file:
                if hashlib.file_digest(file, "sha256").hexdigest() != oid:
                    raise GitError(GitFault.REFUSED, f"object {oid[:12]} of Git LFS does not have this SHA-256")


async def _pointers(mirror: Mirror, objects: Iterable[str]) -> Mapping[str, LfsPointer]:
    """The pointers among these objects of git, by the ids of their blobs."""
    small = small_blobs((await _read_batch(mirror, "--batch-check", sorted(set(objects)))).decode())
    pointers: dict[str, LfsPointer] = {}
    for begin in range(0, len(small), _MAX_BLOBS_PER_READ):
        pointers |= pointers_in(await _read_batch(mirror, "--batch", small[begin : begin + _MAX_BLOBS_PER_READ]))
    return pointers


async def _read_batch(mirror: Mirror, option: str, objects: Sequence[str]) -> bytes:
    listed = "".join(f"{one}\n" for one in objects).encode()
    if not listed:
        return b""
    _, printed = await mirror.git("cat-file", option, stdin=listed)
    return printed


async def _download(mirror: Mirror, server: "LfsServer", missing: Sequence[LfsPointer]) -> None:
    actions = await server.actions("download", missing)
    async with mirror.writing():
        for one in missing:
            action = actions[one].get("download")
            if action is None:
                raise GitError(GitFault.NOT_FOUND, f"Git LFS: the server does not have object {one.oid[:12]}")
            async with _new_object(mirror, one.oid) as part:
                with part.open("wb") as file:
                    await server.download(one, action, file)


async def _upload(mirror: Mirror, server: "LfsServer", pointers: Sequence[LfsPointer], restore: Restore | None) -> None:
    # The size in a pointer may be wrong, so the size of the object is sent.
    wanted = [
        replace(one, size=file.stat().st_size) if (file := _object_file(mirror, one.oid)).exists() else one
        for one in pointers
    ]
    actions = {one: named for one, named in (await server.actions("upload", wanted)).items() if "upload" in named}
    if missing := _missing(mirror, actions):
        if restore is not None:
            await restore()
            await _upload(mirror, server, pointers, None)
            return
        problem = f"the server does not have {len(missing)} objects that no sandbox has saved"
        raise GitError(GitFault.REFUSED, f"Git LFS: {problem}, the first of them {missing[0].oid}")
    for one, requests in actions.items():
        await server.upload(one, requests, _object_file(mirror, one.oid))


def _missing(mirror: Mirror, wanted: Iterable[LfsPointer]) -> list[LfsPointer]:
    return [one for one in wanted if not _object_file(mirror, one.oid).exists()]


def _object_file(mirror: Mirror, oid: str) -> Path:
    return mirror.path / "lfs" / "objects" / oid[:2] / oid[2:4] / oid


def _touch(file: Path) -> None:
    if file.exists():
        os.utime(file)


@asynccontextmanager
async def _new_object(mirror: Mirror, oid: str) -> AsyncIterator[Path]:
    """A temporary file that becomes the object after this block. The caller holds the mirror's lock."""
    target = _object_file(mirror, oid)
    target.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=mirror.path / "lfs", prefix="tmp_")
    os.close(descriptor)
    part = Path(name)
    try:
        yield part
        part.chmod(_READ_ONLY)
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)
