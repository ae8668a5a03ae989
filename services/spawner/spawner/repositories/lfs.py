"""The objects of Git LFS in mirrors: fetched for checkouts, received from sandboxes, and stored before a push.

They are files of a mirror, `lfs/objects/AA/BB/OID` as git-lfs has them: it has one writer and a maximum size.
"""

import hashlib
import os
import shutil
import tarfile
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from spawner.repositories.git import GitError, GitFault, RemoteRepository, in_repository, run_git
from spawner.repositories.hosts import RepositoryHosts
from spawner.repositories.lfs_pointers import Pointer, is_oid, pointers_in, size_problem, small_blobs
from spawner.repositories.mirror import FETCH, Mirror

if TYPE_CHECKING:
    from spawner.repositories.lfs_server import LfsServer

REF: Final = "refs/sandherd/lfs"
"""The ref of a sandbox's bundle with a commit whose files are objects, each with its SHA-256 as its name."""
TAR: Final = "application/x-tar"
_ANY: Final = frozenset({0, 1, 128})
_READ_ONLY: Final = 0o444
_AT_ONCE: Final = 20_000
"""How many small files are read at once: at most 20 MiB."""
_USED_SECONDS: Final = 3600.0
"""An object that was needed within this time is one of a checkout that may not have begun."""


class LfsObjects:
    """The objects of all mirrors. Methods raise `GitError`."""

    def __init__(self, hosts: RepositoryHosts, max_bytes: int) -> None:
        """`max_bytes`: the maximum of one checkout."""
        self._hosts, self._max_bytes = hosts, max_bytes

    async def fetch(self, mirror: Mirror, commit: str, url: str) -> Sequence[Pointer]:
        """The objects that the files of a commit need; the mirror has them then."""
        listed = await mirror.run("ls-tree", "-r", "-z", "--full-tree", "--end-of-options", commit)
        found = await _pointers(mirror, [line.partition("\t")[0].split(" ")[2] for line in listed.split("\0") if line])
        if (problem := size_problem(found, self._max_bytes)) is not None:
            raise GitError(GitFault.TOO_LARGE, problem)
        wanted = sorted(set(found.values()), key=lambda one: one.oid)
        for one in wanted:
            _touch(_file(mirror, one.oid))
        missing = [one for one in wanted if not _file(mirror, one.oid).exists()]
        if missing:
            await self._use(url, lambda server: _download(mirror, server, missing))
        return wanted

    async def upload(self, mirror: Mirror, base: str, commit: str, url: str) -> None:
        """Store at the server what the commits since `base` need and it does not have.

        An object that no sandbox has saved is an error, unless the server has no Git LFS and the pointers may be files
        of another purpose.
        """
        listed = await mirror.run("rev-list", "--objects", "--no-object-names", f"{base}..{commit}")
        found = await _pointers(mirror, listed.split())
        wanted = sorted(set(found.values()), key=lambda one: one.oid)
        if not wanted:
            return
        try:
            await self._use(url, lambda server: _upload(mirror, server, wanted))
        except GitError as error:
            known = [one for one in wanted if _file(mirror, one.oid).exists()]
            if known or error.fault is not GitFault.NOT_FOUND:
                raise

    async def _use(self, url: str, command: "Callable[[LfsServer], Awaitable[None]]") -> None:
        from spawner.repositories.lfs_server import LfsServer, new_session

        async def run(remote: RemoteRepository) -> None:
            async with new_session() as session:
                await command(LfsServer(remote, session, self._hosts.origins | self._hosts.lfs_origins))

        await self._hosts.use(url, run)


def write_tar(mirror: Mirror, objects: Iterable[Pointer], file: Path) -> None:
    """Write the objects as a tar file, each with its SHA-256 as its name. It blocks."""
    with tarfile.open(file, "w") as archive:
        for one in objects:
            archive.add(_file(mirror, one.oid), arcname=one.oid, recursive=False)


def remove_unused(mirror: Mirror, *, every: bool = False) -> None:
    """Remove the objects that no checkout has needed for an hour, or all: they are fetched again. It blocks."""
    if every:
        shutil.rmtree(mirror.path / "lfs", ignore_errors=True)
        return
    before = time.time() - _USED_SECONDS
    for file in (mirror.path / "lfs" / "objects").glob("*/*/*"):
        if file.stat().st_mtime < before:
            file.unlink()


async def take_objects(mirror: Mirror, bundle: Path, quarantine: Path) -> None:
    """Store the objects of a sandbox's bundle, if it has some; each is what its name states.

    The mirror is being written.
    """
    own = in_repository(quarantine)
    _, heads = await run_git(*own, "bundle", "list-heads", str(bundle), REF, limits=mirror.limits, accepted=_ANY)
    if not heads.strip():
        return
    await run_git(*own, *FETCH, "--end-of-options", str(bundle), f"+{REF}:{REF}", limits=mirror.limits)
    _, names = await run_git(*own, "ls-tree", "-z", "--name-only", REF, limits=mirror.limits)
    for oid in names.decode("utf-8", "replace").split("\0"):
        if is_oid(oid) and not _file(mirror, oid).exists():
            async with _new_object(mirror, oid) as part:
                with part.open("wb") as file:
                    await run_git(*own, "cat-file", "blob", f"{REF}:{oid}", limits=mirror.limits, into=file)
                with part.open("rb") as file:
                    if hashlib.file_digest(file, "sha256").hexdigest() != oid:
                        raise GitError(GitFault.REFUSED, f"object {oid[:12]} of Git LFS has another SHA-256")


async def _pointers(mirror: Mirror, objects: Iterable[str]) -> Mapping[str, Pointer]:
    """The pointers among these objects, by the ids of their blobs."""
    small = small_blobs((await _read_batch(mirror, "--batch-check", sorted(set(objects)))).decode())
    found: dict[str, Pointer] = {}
    for begin in range(0, len(small), _AT_ONCE):
        found |= pointers_in(await _read_batch(mirror, "--batch", small[begin : begin + _AT_ONCE]))
    return found


async def _read_batch(mirror: Mirror, option: str, objects: Sequence[str]) -> bytes:
    listed = "".join(f"{one}\n" for one in objects).encode()
    if not listed:
        return b""
    _, printed = await mirror.git("cat-file", option, stdin=listed)
    return printed


async def _download(mirror: Mirror, server: "LfsServer", missing: Sequence[Pointer]) -> None:
    actions = await server.actions("download", missing)
    async with mirror.writing():
        for one in missing:
            action = actions[one].get("download")
            if action is None:
                raise GitError(GitFault.NOT_FOUND, f"Git LFS: the server does not have object {one.oid[:12]}")
            async with _new_object(mirror, one.oid) as part:
                with part.open("wb") as file:
                    await server.download(one, action, file)


async def _upload(mirror: Mirror, server: "LfsServer", wanted: Sequence[Pointer]) -> None:
    actions = {one: found for one, found in (await server.actions("upload", wanted)).items() if "upload" in found}
    missing = [one for one in actions if not _file(mirror, one.oid).exists()]
    if missing:
        problem = f"the server does not have {len(missing)} objects that no sandbox has saved"
        raise GitError(GitFault.REFUSED, f"Git LFS: {problem}, the first of them {missing[0].oid}")
    for one, found in actions.items():
        await server.upload(one, found, _file(mirror, one.oid))


def _file(mirror: Mirror, oid: str) -> Path:
    return mirror.path / "lfs" / "objects" / oid[:2] / oid[2:4] / oid


def _touch(file: Path) -> None:
    if file.exists():
        os.utime(file)


@asynccontextmanager
async def _new_object(mirror: Mirror, oid: str) -> AsyncIterator[Path]:
    """A file that is the object once it is complete. The mirror is being written."""
    target = _file(mirror, oid)
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
