"""Putting a file or a folder into the work tree: whole, or nothing of it is seen."""

import asyncio
import hashlib
import os
import secrets
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import IO, TYPE_CHECKING

from sandherd.contracts.errors import Code, ContractError
from sandherd.contracts.events.access import AgentFileUploaded
from sandherd.contracts.requests.access import FileWritten
from sandherd.contracts.requests.worker import WorkerUpload
from sandherd_worker.access.beneath import Beneath, refused, trouble
from sandherd_worker.access.pieces import Exchange
from sandherd_worker.ignore import UNFINISHED
from sandherd_worker.laying import lay
from sandherd_worker.parts import Parts

if TYPE_CHECKING:
    from sandherd_worker.access.transfers import Progress


class Putting:
    """Does uploads."""

    def __init__(self, parts: Parts, beneath: Beneath, exchange: Exchange) -> None:
        self._parts, self._beneath, self._exchange = parts, beneath, exchange

    async def put(self, asked: WorkerUpload, progress: "Progress") -> FileWritten:
        """Do one. Raises `ContractError` and `SpoolError`."""
        size = len(asked.data or b"") if asked.artifact is None else asked.artifact.size
        if size > asked.max_bytes:
            field = "data" if asked.artifact is None else "artifact"
            raise ContractError(Code.TOO_LARGE, f"{size} bytes; the limit is {asked.max_bytes}", field=field)
        progress.size = size
        try:
            files = await (self._put_folder(asked, progress) if asked.unpack else self._put_file(asked, progress))
        except OSError as error:
            raise trouble(asked.path, error) from None
        said = AgentFileUploaded(path=asked.path, size=size, sha256=asked.sha256, files=files)
        await self._parts.emitter.emit(said)
        return FileWritten(path=asked.path, size=size, sha256=asked.sha256, files=files, moved=size)

    async def _put_file(self, asked: WorkerUpload, progress: "Progress") -> int:
        with self._beneath.place(asked.path, make=True, follow=False) as (folder, name):
            if name == "." or _is_folder(folder, name):
                raise refused(asked.path, "is a folder; name the file in it")
            with _part(folder) as (part, file):
                await self._fill(file, asked, progress)
                await asyncio.to_thread(_finish, file, asked.mode)
                os.rename(part, name, src_dir_fd=folder, dst_dir_fd=folder)
        return 1

    async def _put_folder(self, asked: WorkerUpload, progress: "Progress") -> int:
        with tempfile.TemporaryFile(dir=self._parts.who.state_dir) as file:
            await self._fill(file, asked, progress)
            file.seek(0)
            return await asyncio.to_thread(self._unpack, file, asked.path, asked.max_bytes)

    async def _fill(self, file: IO[bytes], asked: WorkerUpload, progress: "Progress") -> None:
        """Bring the bytes into the file, and see that they are the right ones."""
        if asked.artifact is not None:
            await self._exchange.fetch(asked.artifact, self._parts.who.sandbox, file, progress.move)
            return
        data = asked.data or b""
        found = hashlib.sha256(data).hexdigest()
        if found != asked.sha256:
            raise ContractError(Code.INVALID_FIELD, f"data has the SHA-256 {found}", field="sha256")
        file.write(data)
        file.flush()

    def _unpack(self, file: IO[bytes], path: str, limit: int) -> int:
        with self._beneath.place(path, make=True) as (folder, name):
            return lay(file, folder, name, path, limit)


@contextmanager
def _part(folder: int) -> Iterator[tuple[str, IO[bytes]]]:
    """A new file in a folder, by a name that nothing watches; removed if it still has that name at the end."""
    name = f"{UNFINISHED}{secrets.token_hex(8)}"
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        with os.fdopen(os.open(name, flags, 0o600, dir_fd=folder), "w+b") as file:
            yield name, file
    finally:
        with suppress(FileNotFoundError):
            os.unlink(name, dir_fd=folder)


def _finish(file: IO[bytes], mode: int) -> None:
    os.fchmod(file.fileno(), mode)
    os.fsync(file.fileno())


def _is_folder(folder: int, name: str) -> bool:
    try:
        return stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)
    except FileNotFoundError:
        return False
