"""Transfers files and folders to and from a sandbox, in one or more chunks; verifies the digest at the end."""

import asyncio
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, Final

from sandherd.client.errors import HerdError, validated
from sandherd.client.events.protocols import HerdConnection
from sandherd.client.regular_file import open_regular_file
from sandherd.client.retry import ProgressCheck, request_with_retries
from sandherd.client.sandboxes import archive
from sandherd.concurrency import cancel_and_wait
from sandherd.contracts.chunks import CHUNK_BYTES, ChunkReceiver, InvalidChunkError, chunk_count, digest_of
from sandherd.contracts.errors import Code
from sandherd.contracts.events import ArtifactRef
from sandherd.contracts.names import UPLOAD_PREFIX, new_name
from sandherd.contracts.requests import (
    INLINE_BYTES,
    Download,
    DownloadChunk,
    FileRead,
    FileWritten,
    Upload,
    UploadChunk,
)
from sandherd.contracts.subjects import ARTIFACT

MAX_CHUNKS_IN_FLIGHT: Final = 4
"""Maximum number of chunks that are sent at the same time."""
STALLED_SECONDS: Final = 120.0
"""Seconds without progress after which a transfer fails."""
MAX_TRANSFER_SECONDS: Final = 3600.0
"""Time limit of a whole transfer, in seconds. The chunks in the sandbox are stored for this time."""
_MIN_PROGRESS_BYTES: Final = 64 * 1024

OnTransfer = Callable[[int, int], None]
"""A function that is called with the number of transferred bytes, and the number of all bytes."""


def silent(_transferred: int, _size: int) -> None:
    """An `OnTransfer` that ignores the progress."""


@dataclass(frozen=True)
class UploadSource:
    """Data to upload: its bytes in an open file, with size, digest and mode."""

    file: IO[bytes]
    size: int
    sha256: str
    mode: int = 0o644
    folder: bool = False
    media_type: str = "application/octet-stream"
    """The media type. The default is for everything except an archive of a folder."""


@contextmanager
def source(path: Path | IO[bytes], limit: int | None) -> Iterator[UploadSource]:
    """A context with a local file, an open file or a folder to upload.

    Raises `HerdError` if it has more than `limit` bytes, or can't be read.
    """
    if not isinstance(path, Path):
        yield _limited_source(path, limit)
        return
    try:
        if path.is_dir():
            with tempfile.TemporaryFile() as packed:
                archive.pack(path, packed, limit)
                yield _upload_source(packed, folder=True)
        else:
            with open_regular_file(path) as file, tempfile.TemporaryFile() as copy:
                status = os.fstat(file.fileno())
                if limit is not None and status.st_size > limit:
                    raise archive.too_large_error(str(path), status.st_size, limit)
                if status.st_size == 0:
                    _copy(file, copy, path, limit)
                yield _upload_source(copy if status.st_size == 0 else file, mode=status.st_mode & 0o777)
    except OSError as error:
        raise HerdError.of(
            Code.INVALID_FIELD,
            f"{error.filename or path}: {error.strerror or error}",
            field="path",
            remedy="name a file or folder that can be read",
        ) from None


def archive_source(file: IO[bytes]) -> UploadSource:
    """The archive of a folder in an open file, to upload."""
    return _upload_source(file, folder=True)


def bundle_source(file: IO[bytes]) -> UploadSource:
    """A bundle of a git repository in an open file, to upload."""
    return replace(_upload_source(file), media_type="application/x-git-bundle")


def _copy(file: IO[bytes], copy: IO[bytes], path: Path, limit: int | None) -> None:
    """Copy a file that reports no size, such as one in /proc, because its content may differ at the next read."""
    while block := os.read(file.fileno(), INLINE_BYTES):
        if limit is not None and copy.tell() + len(block) > limit:
            raise archive.too_large_error(str(path), None, limit)
        copy.write(block)


def bytes_source(data: bytes, file: IO[bytes], mode: int = 0o644) -> UploadSource:
    """Bytes to upload, which are written to `file`."""
    file.write(data)
    return _upload_source(file, mode=mode)


def _limited_source(file: IO[bytes], limit: int | None) -> UploadSource:
    content = _upload_source(file)
    if limit is not None and content.size > limit:
        raise archive.too_large_error("the file", content.size, limit)
    return content


def _upload_source(file: IO[bytes], *, mode: int = 0o644, folder: bool = False) -> UploadSource:
    """The current content of the file, to upload. Data that is appended later is not uploaded."""
    size, sha256 = digest_of(file)
    return UploadSource(file, size, sha256, mode, folder)


async def upload(
    link: HerdConnection, project: str, sandbox: str, content: UploadSource, path: str, *, report: OnTransfer = silent
) -> FileWritten:
    """Upload `content` into the sandbox as `path`. Raises `HerdError`."""
    is_inline = content.size <= INLINE_BYTES
    content.file.seek(0)
    request = validated(
        Upload,
        sandbox=sandbox,
        transfer=new_name("trf"),
        path=path,
        data=content.file.read(content.size) if is_inline else None,
        artifact=None if is_inline else await _send_chunks(link, project, sandbox, content, report),
        sha256=content.sha256,
        mode=content.mode,
        unpack=content.folder,
    )
    written: FileWritten = await _repeat_until_done(link, request)
    if written.sha256 != content.sha256 or written.size != content.size:
        raise _damaged_error(path, "the sandbox wrote other data than was sent")
    report(content.size, content.size)
    return written


async def store(
    link: HerdConnection, project: str, owner: str, content: UploadSource, *, report: OnTransfer
) -> ArtifactRef:
    """Store `content` as an artifact of `owner`: a sandbox, or a task to be submitted. Raises `HerdError`."""
    return await _send_chunks(link, project, owner, content, report)


async def fetch(link: HerdConnection, owner: str, artifact: ArtifactRef, out: IO[bytes], report: OnTransfer) -> None:
    """Write an artifact of a sandbox or a task into an empty file. Raises `HerdError`, also if it is damaged."""
    await _fetch(link, owner, artifact, out, report)
    if digest_of(out) != (artifact.size, artifact.sha256):
        raise _damaged_error(artifact.artifact, "the received data is not what was stored")
    out.seek(0)


async def _repeat_until_done(link: HerdConnection, request: Any) -> Any:
    """Repeat the request, which continues the transfer, until it is done. Raises `HerdError` without progress."""
    progress = ProgressCheck(STALLED_SECONDS, total_seconds=MAX_TRANSFER_SECONDS, minimum=_MIN_PROGRESS_BYTES)
    while not (reply := await request_with_retries(link, request)).done:
        await progress.report(reply.moved)
    return reply


async def _send_chunks(
    link: HerdConnection, project: str, sandbox: str, content: UploadSource, report: OnTransfer
) -> ArtifactRef:
    """Send the chunks, some concurrently. Returns a reference to the stored artifact."""
    name = new_name(UPLOAD_PREFIX.removesuffix("-"))
    count, sent = chunk_count(content.size), 0

    async def send(index: int) -> None:
        nonlocal sent
        start = index * CHUNK_BYTES
        data = os.pread(content.file.fileno(), min(CHUNK_BYTES, content.size - start), start)
        await request_with_retries(link, UploadChunk(sandbox=sandbox, artifact=name, index=index, data=data))
        sent += len(data)
        report(min(sent, content.size - 1), content.size)

    await _for_each(count, send)
    return ArtifactRef(
        artifact=name,
        subject=ARTIFACT.fill(project=project, sandbox=sandbox, artifact=name),
        size=content.size,
        sha256=content.sha256,
        chunks=count,
        media_type="application/x-tar" if content.folder else content.media_type,
    )


async def _for_each(count: int, send_one: Callable[[int], Any]) -> None:
    """Call `send_one` for each number, with limited concurrency. The first error cancels the other calls."""
    numbers = iter(range(count))

    async def work() -> None:
        for number in numbers:
            await send_one(number)

    workers = [asyncio.ensure_future(work()) for _ in range(min(MAX_CHUNKS_IN_FLIGHT, count))]
    try:
        await asyncio.gather(*workers)
    finally:
        await cancel_and_wait(workers)


async def download(
    link: HerdConnection, sandbox: str, path: str, out: IO[bytes], report: OnTransfer = silent
) -> FileRead:
    """Download a file, or a folder as an archive, from the sandbox into `out`. Raises `HerdError`."""
    request = validated(Download, sandbox=sandbox, transfer=new_name("trf"), path=path)
    reply: FileRead = await _repeat_until_done(link, request)
    if reply.artifact is None:
        out.write(reply.data or b"")
    else:
        await _fetch(link, sandbox, reply.artifact, out, report)
    if digest_of(out) != (reply.size, reply.sha256):
        raise _damaged_error(path, "the received data is not what the sandbox sent")
    out.seek(0)
    report(reply.size, reply.size)
    return reply


async def _fetch(link: HerdConnection, sandbox: str, artifact: ArtifactRef, out: IO[bytes], report: OnTransfer) -> None:
    """Write the chunks, each at its offset, because they may be received in any order and more than once."""
    try:
        receiver = ChunkReceiver(artifact)
        while not receiver.complete:
            request = validated(DownloadChunk, sandbox=sandbox, artifact=artifact.artifact, after=receiver.after)
            chunk = await request_with_retries(link, request)
            out.seek(receiver.accept(chunk))
            out.write(chunk.data)
            report(min(receiver.moved, artifact.size - 1), artifact.size)
    except InvalidChunkError as error:
        raise _damaged_error(artifact.artifact, str(error)) from None


def _damaged_error(path: str, problem: str) -> HerdError:
    return HerdError.of(Code.CONFLICT, f"{path}: {problem}", field="path", remedy="copy it again")
