"""Files and folders into a sandbox and out of it: in one piece or many, each once; at the end the digest is checked."""

import asyncio
import hashlib
import os
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

from sandherd.client import archiving
from sandherd.client.errors import HerdError, made
from sandherd.client.link import Link
from sandherd.client.persisting import Progress, persist
from sandherd.contracts.errors import Code
from sandherd.contracts.events import ArtifactRef
from sandherd.contracts.names import new_name
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

AT_ONCE: Final = 4
"""How many pieces are on their way at the same time."""
STALLED: Final = 120.0
"""How long a transfer may go without moving, in seconds."""
LONGEST: Final = 3600.0
"""How long a sandbox may take before all of it is there, in seconds: so long pieces wait."""
_LEAST: Final = 64 * 1024
_BLOCK: Final = 1 << 20

Moved = Callable[[int, int], None]
"""Told how many bytes of how many have moved."""


def silent(_moved: int, _size: int) -> None:
    """For who does not ask how far it is."""


@dataclass(frozen=True)
class Source:
    """What is to be put into a sandbox: its bytes, in a file that is open, and what they are."""

    file: IO[bytes]
    size: int
    sha256: str
    mode: int = 0o644
    folder: bool = False


@contextmanager
def source(path: Path, most: int | None) -> Iterator[Source]:
    """A local file or folder, ready to be sent. Raises `HerdError` for one over `most` bytes, or that can't be read."""
    try:
        if path.is_dir():
            with tempfile.TemporaryFile() as packed:
                archiving.pack(path, packed, most)
                yield _described(packed, folder=True)
        else:
            with _file(path) as file, tempfile.TemporaryFile() as aside:
                found = os.fstat(file.fileno())
                if most is not None and found.st_size > most:
                    raise archiving.too_large(str(path), found.st_size, most)
                if found.st_size == 0:
                    _read_once(file, aside, path, most)
                yield _described(aside if found.st_size == 0 else file, mode=found.st_mode & 0o777)
    except OSError as error:
        raise HerdError.of(
            Code.INVALID_FIELD,
            f"{error.filename or path}: {error.strerror or error}",
            field="path",
            remedy="name what can be read",
        ) from None


@contextmanager
def _file(path: Path) -> Iterator[IO[bytes]]:
    """A regular file, and nothing else: opening a pipe waits for somebody to write, and a device has no end."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise HerdError.of(
            Code.INVALID_FIELD,
            f"{path} is neither a file nor a folder",
            field="path",
            remedy="write what it gives into a file, and copy that",
        )
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb", buffering=0) as file:
        yield file


def _read_once(file: IO[bytes], aside: IO[bytes], path: Path, most: int | None) -> None:
    """What is in a file that has no size, as those of /proc, and may have other content the next time."""
    while block := os.read(file.fileno(), INLINE_BYTES):
        if most is not None and aside.tell() + len(block) > most:
            raise archiving.too_large(str(path), None, most)
        aside.write(block)


def of_bytes(data: bytes, file: IO[bytes], mode: int = 0o644) -> Source:
    """Bytes, ready to be sent."""
    file.write(data)
    return _described(file, mode=mode)


def _described(file: IO[bytes], *, mode: int = 0o644, folder: bool = False) -> Source:
    """What is in the file now; if it grows meanwhile, without that."""
    digest, size = hashlib.sha256(), file.seek(0, os.SEEK_END)
    file.seek(0)
    while block := file.read(min(_BLOCK, size - file.tell())):
        digest.update(block)
    return Source(file, file.tell(), digest.hexdigest(), mode, folder)


async def upload(
    link: Link, project: str, sandbox: str, given: Source, path: str, *, moved: Moved = silent
) -> FileWritten:
    """Put it into the sandbox as `path`. Raises `HerdError`."""
    whole = given.size <= INLINE_BYTES
    given.file.seek(0)
    request = made(
        Upload,
        sandbox=sandbox,
        transfer=new_name("trf"),
        path=path,
        data=given.file.read(given.size) if whole else None,
        artifact=None if whole else await _put_aside(link, project, sandbox, given, moved),
        sha256=given.sha256,
        mode=given.mode,
        unpack=given.folder,
    )
    written: FileWritten = await _done(link, request)
    if written.sha256 != given.sha256 or written.size != given.size:
        raise _damaged(path, "what the sandbox wrote is not what was sent")
    moved(given.size, given.size)
    return written


async def _done(link: Link, request: Any) -> Any:
    """Ask until it is done: the same transfer asked for again goes on. Raises `HerdError` if it does not."""
    progress = Progress(STALLED, longest=LONGEST, least=_LEAST)
    while True:
        found = await persist(link, request)
        if found.done:
            return found
        await progress.made(found.moved)


async def _put_aside(link: Link, project: str, sandbox: str, given: Source, moved: Moved) -> ArtifactRef:
    """Send the pieces, some at a time. Returns where they wait."""
    name = new_name("upl")
    count = -(-given.size // INLINE_BYTES)
    sent = 0

    async def send(index: int) -> None:
        nonlocal sent
        start = index * INLINE_BYTES
        data = os.pread(given.file.fileno(), min(INLINE_BYTES, given.size - start), start)
        await persist(link, UploadChunk(sandbox=sandbox, artifact=name, index=index, data=data))
        sent += len(data)
        moved(min(sent, given.size - 1), given.size)

    await _each(count, send)
    return ArtifactRef(
        artifact=name,
        subject=ARTIFACT.fill(project=project, sandbox=sandbox, artifact=name),
        size=given.size,
        sha256=given.sha256,
        chunks=count,
        media_type="application/x-tar" if given.folder else "application/octet-stream",
    )


async def _each(count: int, do: Callable[[int], Any]) -> None:
    """Do it for each number, so many at a time. The first error ends all."""
    numbers = iter(range(count))

    async def work() -> None:
        for number in numbers:
            await do(number)

    workers = [asyncio.ensure_future(work()) for _ in range(min(AT_ONCE, count))]
    try:
        await asyncio.gather(*workers)
    finally:
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)


async def download(link: Link, sandbox: str, path: str, out: IO[bytes], moved: Moved = silent) -> FileRead:
    """Take a file, or a folder as an archive, out of the sandbox; its bytes are in `out`. Raises `HerdError`."""
    found: FileRead = await _done(link, made(Download, sandbox=sandbox, transfer=new_name("trf"), path=path))
    if found.artifact is None:
        out.write(found.data or b"")
    else:
        await _fetch(link, sandbox, found.artifact, out, moved)
    digest = hashlib.sha256()
    out.seek(0)
    archiving.pieces(out, digest.update)
    if out.tell() != found.size or digest.hexdigest() != found.sha256:
        raise _damaged(path, "what came is not what the sandbox sent")
    out.seek(0)
    moved(found.size, found.size)
    return found


async def _fetch(link: Link, sandbox: str, artifact: ArtifactRef, out: IO[bytes], moved: Moved) -> None:
    """The pieces, each in its place: they may come in any order, and twice."""
    here: set[int] = set()
    after = 0
    if artifact.chunks != max(1, -(-artifact.size // INLINE_BYTES)):
        raise _damaged(artifact.artifact, "its number of pieces is not that of its size")
    while len(here) < artifact.chunks:
        piece = await persist(link, made(DownloadChunk, sandbox=sandbox, artifact=artifact.artifact, after=after))
        if piece.index >= artifact.chunks:
            raise _damaged(artifact.artifact, "there are more pieces than it has")
        if piece.after <= after:
            raise _damaged(artifact.artifact, "its pieces go round in a circle")
        out.seek(piece.index * INLINE_BYTES)
        out.write(piece.data)
        here.add(piece.index)
        after = piece.after
        moved(min(len(here) * INLINE_BYTES, artifact.size - 1), artifact.size)


def _damaged(path: str, what: str) -> HerdError:
    return HerdError.of(Code.CONFLICT, f"{path}: {what}", field="path", remedy="copy it again")
