"""Uploads a file or a folder into the work tree, atomically."""

import asyncio
import hashlib
import os
import secrets
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import IO

from sandherd.archives.ignore import UNFINISHED
from sandherd.archives.no_follow import is_directory
from sandherd.contracts.errors import Code, ContractError
from sandherd.contracts.events.access import AgentFileUploaded
from sandherd.contracts.requests.access import FileWritten
from sandherd.contracts.requests.worker import WorkerUpload
from sandherd_worker.access.archive import unpack_staged
from sandherd_worker.access.artifact_client import ArtifactClient, TransferProgress
from sandherd_worker.access.safe_paths import WorkTreePaths, path_error, refused
from sandherd_worker.worker_resources import WorkerResources


class Uploads:
    """Performs uploads."""

    def __init__(self, resources: WorkerResources, tree: WorkTreePaths, artifacts: ArtifactClient) -> None:
        self._resources, self._tree, self._artifacts = resources, tree, artifacts

    async def perform(self, request: WorkerUpload, progress: TransferProgress) -> FileWritten:
        """Perform one upload. Raises `ContractError` and `SpoolError`."""
        size = len(request.data or b"") if request.artifact is None else request.artifact.size
        if size > request.max_bytes:
            field = "data" if request.artifact is None else "artifact"
            raise ContractError(Code.TOO_LARGE, f"{size} bytes; the limit is {request.max_bytes}", field=field)
        progress.size = size
        try:
            write = self._write_folder if request.unpack else self._write_file
            files = await write(request, progress)
        except OSError as error:
            raise path_error(request.path, error) from None
        event = AgentFileUploaded(path=request.path, size=size, sha256=request.sha256, files=files)
        await self._resources.emitter.emit(event)
        return FileWritten(path=request.path, size=size, sha256=request.sha256, files=files, moved=size)

    async def _write_file(self, request: WorkerUpload, progress: TransferProgress) -> int:
        with self._tree.open_parent(request.path, make=True, follow=False) as (folder, name):
            if name == "." or is_directory(folder, name):
                raise refused(request.path, "is a folder; name the file in it")
            with _temporary_file(folder) as (part, file):
                await self._fill(file, request, progress)
                await asyncio.to_thread(_set_mode_and_sync, file, request.mode)
                os.rename(part, name, src_dir_fd=folder, dst_dir_fd=folder)
        return 1

    async def _write_folder(self, request: WorkerUpload, progress: TransferProgress) -> int:
        with tempfile.TemporaryFile(dir=self._resources.assignment.state_dir) as file:
            await self._fill(file, request, progress)
            file.seek(0)
            return await asyncio.to_thread(self._unpack, file, request.path, request.max_bytes)

    async def _fill(self, file: IO[bytes], request: WorkerUpload, progress: TransferProgress) -> None:
        """Write the content into the file, and check its digest."""
        if request.artifact is not None:
            await self._artifacts.fetch(request.artifact, self._resources.assignment.sandbox, file, progress.move)
            return
        data = request.data or b""
        sha256 = hashlib.sha256(data).hexdigest()
        if sha256 != request.sha256:
            text = f"data has the SHA-256 {sha256}, not {request.sha256}"
            raise ContractError(Code.INVALID_FIELD, text, field="sha256")
        file.write(data)
        file.flush()

    def _unpack(self, file: IO[bytes], path: str, limit: int) -> int:
        with self._tree.open_parent(path, make=True) as (folder, name):
            return unpack_staged(file, folder, name, path, limit)


@contextmanager
def _temporary_file(folder: int) -> Iterator[tuple[str, IO[bytes]]]:
    """A new file in a folder, with a name that the file tracker ignores. It is removed unless it was renamed."""
    name = f"{UNFINISHED}{secrets.token_hex(8)}"
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        with os.fdopen(os.open(name, flags, 0o600, dir_fd=folder), "w+b") as file:
            yield name, file
    finally:
        with suppress(FileNotFoundError):
            os.unlink(name, dir_fd=folder)


def _set_mode_and_sync(file: IO[bytes], mode: int) -> None:
    os.fchmod(file.fileno(), mode)
    os.fsync(file.fileno())
