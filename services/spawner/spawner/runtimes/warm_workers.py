"""Workers that are started in advance: how they wait, and how they get their identity.

Such a worker blocks on a pipe in its state directory. To give it an identity, its environment is written first, then
one byte into the pipe. From then on an agent may have changed anything in that directory.
"""

import asyncio
import fcntl
import json
import os
import stat
import termios
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from sandherd.bus.identity.keys import KeyKind, is_public_key
from spawner.runtimes.contract import RuntimeFailedError, RuntimeFault
from spawner.runtimes.layout import SandboxDirectory

_LOADING: Final = 30.0
_READ_SECONDS: Final = 5.0
"""A waiting worker reads at once. One that does not read within these seconds has received its identity before."""
_POLL_SECONDS: Final = 0.01
_FIRST_POLL_SECONDS: Final = 0.0005
_MODE: Final = 0o600
_PUBLIC_KEY: Final = "worker.pub"
_KEY_LENGTH: Final = 56
"""Characters of a public key."""
_BEGIN: Final = b"\n"


def make(place: SandboxDirectory) -> None:
    """Create the pipe, and the file which shows that the worker waits. Raises `OSError`."""
    with suppress(FileExistsError):
        os.mkfifo(place.start_pipe, _MODE)
        if (uid := place.user) is not None:
            os.chown(place.start_pipe, uid, uid, follow_symlinks=False)
    place.warm.touch()


async def until_waiting(place: SandboxDirectory, alive: Callable[[], bool]) -> None:
    """Wait until the worker has loaded its modules and reads the pipe. Raises `RuntimeFailedError`."""
    pipe = await _open(place, alive, _LOADING)
    if pipe is None:
        raise RuntimeFailedError(RuntimeFault.UNAVAILABLE, f"{place.name} is not waiting for an identity")
    os.close(pipe)  # nothing was written, so the worker continues to wait


def public_key(place: SandboxDirectory) -> str | None:
    """The public key that a waiting worker has stored; None if there is none, as a worker may create no key."""
    try:
        found = _read_file(place.state / _PUBLIC_KEY, _KEY_LENGTH + 1).decode("ascii")
    except (OSError, ValueError):
        return None
    return found if is_public_key(found, KeyKind.USER) else None


async def send_identity(place: SandboxDirectory, variables: Mapping[str, str], alive: Callable[[], bool]) -> bool:
    """Give the worker its identity. False if it ended before it read the identity: then it must be started again.

    A worker that ends just after it has read its identity counts as started: its end is handled as for any worker.
    After a crash this can be repeated with the same variables; a worker that no longer waits ignores it.
    """
    try:
        place.write_secret(place.environment, json.dumps(dict(variables)))
        pipe = await _open(place, alive, _READ_SECONDS)
        received = pipe is not None and await _write_all(pipe)
        place.warm.unlink(missing_ok=True)
    except OSError as error:
        raise RuntimeFailedError(RuntimeFault.UNAVAILABLE, f"can't give {place.name} its identity: {error}") from error
    return received or alive()


async def _open(place: SandboxDirectory, alive: Callable[[], bool], seconds: float) -> int | None:
    """The pipe, once a worker reads it; None if none does within `seconds`."""
    deadline = asyncio.get_running_loop().time() + seconds
    while alive() and asyncio.get_running_loop().time() < deadline:
        with suppress(OSError):  # ENXIO: no reader yet
            return _pipe_of(place)
        await asyncio.sleep(_POLL_SECONDS)
    return None


async def _write_all(pipe: int) -> bool:
    """Write a byte, and wait until the worker has read it; False if that takes longer than `_READ_SECONDS`.

    Unread data is lost when the last descriptor of the pipe is closed.
    """
    deadline = asyncio.get_running_loop().time() + _READ_SECONDS
    with os.fdopen(pipe, "wb", buffering=0) as writer:
        writer.write(_BEGIN)
        wait = _FIRST_POLL_SECONDS  # a waiting worker needs less than a millisecond
        while asyncio.get_running_loop().time() < deadline:
            if not _unread(pipe):
                return True
            await asyncio.sleep(wait)
            wait = min(_POLL_SECONDS, 2 * wait)
    return False


def _read_file(path: Path, limit: int) -> bytes:
    """The first bytes of a regular file, without waiting for the writer of a pipe in its place. Raises `OSError`."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        return os.read(descriptor, limit) if stat.S_ISREG(os.fstat(descriptor).st_mode) else b""
    finally:
        os.close(descriptor)


def _unread(pipe: int) -> bool:
    found = bytearray(4)
    fcntl.ioctl(pipe, termios.FIONREAD, found)
    return any(found)


def _pipe_of(place: SandboxDirectory) -> int:
    descriptor = os.open(place.start_pipe, os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    if stat.S_ISFIFO(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    raise OSError(f"{place.start_pipe} is not a pipe")
