"""Workers that are started beforehand: how they wait, and how one is told what it is.

Such a worker blocks on a pipe in its state directory. Whoever gives it an identity writes what it is to know first,
and one byte into the pipe last. From then on all in that directory may have been changed by an agent.
"""

import asyncio
import fcntl
import json
import os
import stat
import termios
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final

from spawner.runtimes.contract import RuntimeFailedError, RuntimeFault
from spawner.runtimes.layout import Place

_LOADING: Final = 30.0
_TELLING: Final = 5.0
"""One that waits reads at once; one that does not by then has heard it before."""
_LOOK_AGAIN: Final = 0.01
_MODE: Final = 0o600
_BEGIN: Final = b"\n"


def make(place: Place) -> None:
    """The pipe, and the mark that it waits. Raises `OSError`."""
    with suppress(FileExistsError):
        os.mkfifo(place.begin, _MODE)
        if (uid := place.user) is not None:
            os.chown(place.begin, uid, uid, follow_symlinks=False)
    place.warm.touch()


async def until_waiting(place: Place, alive: Callable[[], bool]) -> None:
    """Return when the worker has loaded what it needs and waits. Raises `RuntimeFailedError`."""
    pipe = await _open(place, alive, _LOADING)
    if pipe is None:
        raise RuntimeFailedError(RuntimeFault.UNAVAILABLE, f"{place.name} does not wait for an identity")
    os.close(pipe)  # one that writes nothing tells it nothing


async def begin(place: Place, variables: Mapping[str, str], alive: Callable[[], bool]) -> bool:
    """Tell it what it is. False if it has ended while it waited: then it is to be started anew.

    Told once more after a crash, it is told what it was told before; whoever does not wait any more hears nothing.
    """
    try:
        place.write_secret(place.environment, json.dumps(dict(variables)))
        pipe = await _open(place, alive, _TELLING)
        if pipe is not None:
            await _tell(pipe)
        place.warm.unlink(missing_ok=True)
    except OSError as error:
        raise RuntimeFailedError(RuntimeFault.UNAVAILABLE, f"{place.name} was not told to begin: {error}") from error
    return alive()


async def _open(place: Place, alive: Callable[[], bool], seconds: float) -> int | None:
    """The pipe, once somebody reads it; None if nobody will."""
    deadline = asyncio.get_running_loop().time() + seconds
    while alive() and asyncio.get_running_loop().time() < deadline:
        with suppress(OSError):  # ENXIO: nobody reads it yet
            return _pipe_of(place)
        await asyncio.sleep(_LOOK_AGAIN)
    return None


async def _tell(pipe: int) -> None:
    """Write, and stay until it is read: what nobody has read goes with the last who holds the pipe."""
    deadline = asyncio.get_running_loop().time() + _TELLING
    with os.fdopen(pipe, "wb", buffering=0) as writer:
        writer.write(_BEGIN)
        while asyncio.get_running_loop().time() < deadline:
            if not _unread(pipe):
                return
            await asyncio.sleep(_LOOK_AGAIN)


def _unread(pipe: int) -> bool:
    found = bytearray(4)
    fcntl.ioctl(pipe, termios.FIONREAD, found)
    return any(found)


def _pipe_of(place: Place) -> int:
    descriptor = os.open(place.begin, os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    if stat.S_ISFIFO(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    raise OSError(f"{place.begin} is no pipe")
