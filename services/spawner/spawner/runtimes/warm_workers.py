"""Warm workers, which are started in advance: how they wait, and how they get their identity.

Such a worker waits at a pipe in its state directory. To give the worker an identity, the spawner writes the worker's
environment to a file, and then one byte to the pipe. From then on an agent may change anything in that directory.
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

_LOAD_TIMEOUT_SECONDS: Final = 30.0
"""The timeout for a new worker to load its modules."""
_READ_TIMEOUT_SECONDS: Final = 5.0
"""The timeout for a waiting worker to read the pipe, which it normally does at once. A worker that runs and does not
read counts as started, because it has received its identity before."""
_POLL_SECONDS: Final = 0.01
_FIRST_POLL_SECONDS: Final = 0.0005
_OWNER_ONLY: Final = 0o600
_PUBLIC_KEY: Final = "worker.pub"
_KEY_LENGTH: Final = 56
"""The number of characters of a public key."""
_START_SIGNAL: Final = b"\n"


def make(directory: SandboxDirectory) -> None:
    """Create the pipe, and the file that exists while the worker waits. Raises `OSError`."""
    with suppress(FileExistsError):
        os.mkfifo(directory.start_pipe, _OWNER_ONLY)
        if (uid := directory.user) is not None:
            os.chown(directory.start_pipe, uid, uid, follow_symlinks=False)
    directory.warm.touch()


async def until_waiting(directory: SandboxDirectory, is_alive: Callable[[], bool]) -> None:
    """Wait until the worker has loaded its modules and reads the pipe. Raises `RuntimeFailedError`."""
    pipe = await _open(directory, is_alive, _LOAD_TIMEOUT_SECONDS)
    if pipe is None:
        raise RuntimeFailedError(RuntimeFault.UNAVAILABLE, f"{directory.name} is not waiting for an identity")
    os.close(pipe)  # nothing was written, so the worker continues to wait


def public_key(directory: SandboxDirectory) -> str | None:
    """The public key that a waiting worker has stored; None if it has stored no valid key. It need not store one."""
    try:
        key = _read_file(directory.state / _PUBLIC_KEY, _KEY_LENGTH + 1).decode("ascii")
    except (OSError, ValueError):
        return None
    return key if is_public_key(key, KeyKind.USER) else None


async def send_identity(
    directory: SandboxDirectory, variables: Mapping[str, str], is_alive: Callable[[], bool]
) -> bool:
    """Give the worker its identity. False if the worker ended before it read the identity, and must be started again.

    A worker that ends just after it has read its identity counts as started, and its end is handled like that of any
    worker. After a crash the call can be repeated with the same variables. A worker that no longer waits ignores it.
    """
    try:
        directory.write_secret(directory.environment, json.dumps(dict(variables)))
        pipe = await _open(directory, is_alive, _READ_TIMEOUT_SECONDS)
        received = pipe is not None and await _send_start_signal(pipe)
        directory.warm.unlink(missing_ok=True)
    except OSError as error:
        raise RuntimeFailedError(
            RuntimeFault.UNAVAILABLE, f"can't give {directory.name} its identity: {error}"
        ) from error
    return received or is_alive()


async def _open(directory: SandboxDirectory, is_alive: Callable[[], bool], seconds: float) -> int | None:
    """The pipe, opened for writing once a worker reads it; None if no worker reads it within `seconds`."""
    deadline = asyncio.get_running_loop().time() + seconds
    while is_alive() and asyncio.get_running_loop().time() < deadline:
        with suppress(OSError):  # ENXIO: no reader yet
            return _open_pipe(directory)
        await asyncio.sleep(_POLL_SECONDS)
    return None


async def _send_start_signal(pipe: int) -> bool:
    """Write a byte, and wait until the worker has read it; False if that takes longer than `_READ_TIMEOUT_SECONDS`.

    Unread data is lost when the last descriptor of the pipe is closed.
    """
    deadline = asyncio.get_running_loop().time() + _READ_TIMEOUT_SECONDS
    with os.fdopen(pipe, "wb", buffering=0) as writer:
        writer.write(_START_SIGNAL)
        wait = _FIRST_POLL_SECONDS  # a waiting worker needs less than a millisecond
        while asyncio.get_running_loop().time() < deadline:
            if not _has_unread_bytes(pipe):
                return True
            await asyncio.sleep(wait)
            wait = min(_POLL_SECONDS, 2 * wait)
    return False


def _read_file(path: Path, limit: int) -> bytes:
    """The first bytes of a regular file; empty for another kind of file. Does not block, even for a pipe.

    Raises `OSError`.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        return os.read(descriptor, limit) if stat.S_ISREG(os.fstat(descriptor).st_mode) else b""
    finally:
        os.close(descriptor)


def _has_unread_bytes(pipe: int) -> bool:
    count = bytearray(4)  # a C int
    fcntl.ioctl(pipe, termios.FIONREAD, count)
    return any(count)


def _open_pipe(directory: SandboxDirectory) -> int:
    """The descriptor of the pipe, opened for writing. Raises `OSError` if no process reads it, or it is no pipe."""
    descriptor = os.open(directory.start_pipe, os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    if stat.S_ISFIFO(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    raise OSError(f"{directory.start_pipe} is not a pipe")
