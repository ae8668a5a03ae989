"""Taking a file or a folder out of the work tree, exactly as its bytes are: nothing in them is redacted."""

import asyncio
import hashlib
import os
import stat
import tempfile
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final

from sandherd.contracts.errors import Code, ContractError
from sandherd.contracts.events import ArtifactRef
from sandherd.contracts.events.access import AgentFileDownloaded
from sandherd.contracts.requests.access import INLINE_BYTES, FileRead
from sandherd.contracts.requests.worker import WorkerDownload
from sandherd_worker.access.beneath import Beneath, refused, trouble
from sandherd_worker.access.pieces import Exchange
from sandherd_worker.archive import TooLargeError, pack
from sandherd_worker.ignore import UNFINISHED
from sandherd_worker.parts import Parts

if TYPE_CHECKING:
    from sandherd_worker.access.transfers import Progress

_BYTES: Final = "application/octet-stream"
_TAR: Final = "application/x-tar"
_READ: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class Taking:
    """Does downloads."""

    def __init__(self, parts: Parts, beneath: Beneath, exchange: Exchange) -> None:
        self._parts, self._beneath, self._exchange = parts, beneath, exchange

    async def take(self, asked: WorkerDownload, progress: "Progress") -> FileRead:
        """Do one. Raises `ContractError` and `SpoolError`."""
        try:
            found = await self._take(asked, progress)
        except OSError as error:
            raise trouble(asked.path, error) from None
        await self._parts.emitter.emit(AgentFileDownloaded(path=asked.path, size=found.size, sha256=found.sha256))
        return found

    async def _take(self, asked: WorkerDownload, progress: "Progress") -> FileRead:
        with self._beneath.place(asked.path) as (folder, name):
            descriptor = os.open(name, _READ, dir_fd=folder)
        try:
            mode = stat.S_IMODE(os.fstat(descriptor).st_mode) & 0o777
            if stat.S_ISDIR(os.fstat(descriptor).st_mode):
                return await self._take_folder(asked, descriptor, mode, progress)
            with os.fdopen(descriptor, "rb", buffering=0, closefd=False) as file:
                return await self._take_file(asked, file, mode, progress)
        finally:
            os.close(descriptor)

    async def _take_file(self, asked: WorkerDownload, file: IO[bytes], mode: int, progress: "Progress") -> FileRead:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode):
            raise refused(asked.path, "is neither a file nor a folder")
        if found.st_size > asked.max_bytes:
            raise _too_large(asked.path, found.st_size, asked.max_bytes)
        progress.size = found.st_size
        return await self._hand_out(
            file, FileRead(path=asked.path, kind="file", size=found.st_size, mode=mode), progress
        )

    async def _take_folder(self, asked: WorkerDownload, folder: int, mode: int, progress: "Progress") -> FileRead:
        progress.kind = "folder"
        with tempfile.TemporaryFile(dir=self._parts.who.state_dir) as file:
            await asyncio.to_thread(_pack, asked, folder, file)
            size = file.tell()
            file.seek(0)
            return await self._hand_out(file, FileRead(path=asked.path, kind="folder", size=size, mode=mode), progress)

    async def _hand_out(self, file: IO[bytes], answer: FileRead, progress: "Progress") -> FileRead:
        """The bytes in the answer if they are few, else put aside; with what is known of them only now."""
        if answer.size <= INLINE_BYTES:
            data = file.read(INLINE_BYTES)
            told = {"data": data, "size": len(data), "sha256": hashlib.sha256(data).hexdigest(), "moved": len(data)}
            return answer.model_copy(update=told)
        media_type = _BYTES if answer.kind == "file" else _TAR
        reference: ArtifactRef = await self._exchange.put(file, answer.size, media_type, progress.move)
        told = {"artifact": reference, "size": reference.size, "sha256": reference.sha256, "moved": reference.size}
        return answer.model_copy(update=told)


def _pack(asked: WorkerDownload, folder: int, file: IO[bytes]) -> None:
    try:
        packed = pack(Path(f"/proc/self/fd/{folder}"), file, limit=asked.max_bytes, skips=_is_unfinished)
    except TooLargeError:
        raise _too_large(asked.path, None, asked.max_bytes) from None
    file.flush()
    if packed.unread:
        raise refused(f"{asked.path}/{packed.unread[0]}", "can't be read")


def _is_unfinished(path: str, _directory: bool) -> bool:  # noqa: FBT001  # as `pack` asks
    return path.rpartition("/")[2].startswith(UNFINISHED)


def _too_large(path: str, size: int | None, limit: int) -> ContractError:
    what = f"{size} bytes" if size is not None else "more than may be"
    return ContractError(Code.TOO_LARGE, f"{path[:200]!r} is {what}; the limit is {limit} bytes", field="path")
