"""Downloads a file or a folder from the work tree, byte for byte: the content is not redacted."""

import asyncio
import hashlib
import os
import stat
import tempfile
from pathlib import Path
from typing import IO, Final

from sandherd.archives.ignore import UNFINISHED
from sandherd.archives.no_follow import READ_FILE
from sandherd.archives.writer import ArchiveTooLargeError, pack
from sandherd.contracts.errors import Code, ContractError
from sandherd.contracts.events import ArtifactRef
from sandherd.contracts.events.access import AgentFileDownloaded
from sandherd.contracts.requests.access import INLINE_BYTES, FileRead
from sandherd.contracts.requests.worker import WorkerDownload
from sandherd_worker.access.artifact_client import ArtifactClient, TransferProgress
from sandherd_worker.access.safe_paths import WorkTreePaths, path_error, refused
from sandherd_worker.worker_resources import WorkerResources

_FILE_MEDIA_TYPE: Final = "application/octet-stream"
_FOLDER_MEDIA_TYPE: Final = "application/x-tar"


class Downloads:
    """Performs downloads."""

    def __init__(self, resources: WorkerResources, tree: WorkTreePaths, artifacts: ArtifactClient) -> None:
        self._resources, self._tree, self._artifacts = resources, tree, artifacts

    async def perform(self, request: WorkerDownload, progress: TransferProgress) -> FileRead:
        """Perform one download. Raises `ContractError` and `SpoolError`."""
        try:
            reply = await self._read(request, progress)
        except OSError as error:
            raise path_error(request.path, error) from None
        await self._resources.emitter.emit(AgentFileDownloaded(path=request.path, size=reply.size, sha256=reply.sha256))
        return reply

    async def _read(self, request: WorkerDownload, progress: TransferProgress) -> FileRead:
        with self._tree.open_parent(request.path) as (folder, name):
            descriptor = os.open(name, READ_FILE, dir_fd=folder)
        try:
            mode = stat.S_IMODE(os.fstat(descriptor).st_mode) & 0o777
            if stat.S_ISDIR(os.fstat(descriptor).st_mode):
                return await self._read_folder(request, descriptor, mode, progress)
            with os.fdopen(descriptor, "rb", buffering=0, closefd=False) as file:
                return await self._read_file(request, file, mode, progress)
        finally:
            os.close(descriptor)

    async def _read_file(
        self, request: WorkerDownload, file: IO[bytes], mode: int, progress: TransferProgress
    ) -> FileRead:
        info = os.fstat(file.fileno())
        if not stat.S_ISREG(info.st_mode):
            raise refused(request.path, "is neither a file nor a folder")
        if info.st_size > request.max_bytes:
            raise _too_large(request.path, info.st_size, request.max_bytes)
        progress.size = info.st_size
        return await self._with_content(
            file, FileRead(path=request.path, kind="file", size=info.st_size, mode=mode), progress
        )

    async def _read_folder(
        self, request: WorkerDownload, folder: int, mode: int, progress: TransferProgress
    ) -> FileRead:
        progress.kind = "folder"
        with tempfile.TemporaryFile(dir=self._resources.assignment.state_dir) as file:
            await asyncio.to_thread(_pack, request, folder, file)
            size = file.tell()
            file.seek(0)
            return await self._with_content(
                file, FileRead(path=request.path, kind="folder", size=size, mode=mode), progress
            )

    async def _with_content(self, file: IO[bytes], reply: FileRead, progress: TransferProgress) -> FileRead:
        """The reply with the content, or with the artifact that stores large content, and with its size and digest."""
        if reply.size <= INLINE_BYTES:
            data = file.read(INLINE_BYTES)
            content = {"data": data, "size": len(data), "sha256": hashlib.sha256(data).hexdigest(), "moved": len(data)}
            return reply.model_copy(update=content)
        media_type = _FILE_MEDIA_TYPE if reply.kind == "file" else _FOLDER_MEDIA_TYPE
        reference: ArtifactRef = await self._artifacts.upload(file, reply.size, media_type, progress.move)
        content = {"artifact": reference, "size": reference.size, "sha256": reference.sha256, "moved": reference.size}
        return reply.model_copy(update=content)


def _pack(request: WorkerDownload, folder: int, file: IO[bytes]) -> None:
    try:
        packed = pack(Path(f"/proc/self/fd/{folder}"), file, limit=request.max_bytes, skips=_is_unfinished)
    except ArchiveTooLargeError:
        raise _too_large(request.path, None, request.max_bytes) from None
    file.flush()
    if packed.unread:
        raise refused(f"{request.path}/{packed.unread[0]}", "can't be read")


def _is_unfinished(path: str, _directory: bool) -> bool:  # noqa: FBT001  # the signature of `pack`'s argument
    return path.rpartition("/")[2].startswith(UNFINISHED)


def _too_large(path: str, size: int | None, limit: int) -> ContractError:
    what = f"{size} bytes" if size is not None else "too large"
    return ContractError(Code.TOO_LARGE, f"{path[:200]!r} is {what}; the limit is {limit} bytes", field="path")
