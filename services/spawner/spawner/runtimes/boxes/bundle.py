"""The worker for boxes whose image lacks it.

It is made by a process of its own: that takes half a second, in which all else would wait, and memory that a process
does not get rid of again.
"""

import asyncio
import sys
from typing import Final
from weakref import WeakKeyDictionary

from sandherd.bundle import COMPILE, LABEL, WORKER
from spawner.runtimes.boxes.provider import ProviderError, ProviderFault

__all__ = ["COMPILE", "LABEL", "WORKER", "digest", "kept", "packed"]

_MAKING: Final = (sys.executable, "-P", "-m", "sandherd.bundle")
_kept: dict[tuple[str, ...], bytes] = {}
_one: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()
"""However many ask at once, it is made once."""


async def kept() -> bytes:
    """The archive that `packed` makes, kept for those who need it for every box. Raises `ProviderError`."""
    return await _once()


async def packed() -> bytes:
    """The archive, gzipped, to be unpacked at `WORKER`. Raises `ProviderError`."""
    return await _made()


async def digest() -> str:
    """What tells this worker from others. Raises `ProviderError`."""
    return (await _once("digest")).decode()


async def _once(*words: str) -> bytes:
    async with _one.setdefault(asyncio.get_running_loop(), asyncio.Lock()):
        if words not in _kept:
            _kept[words] = await _made(*words)
        return _kept[words]


async def _made(*words: str) -> bytes:
    pipe = asyncio.subprocess.PIPE
    making = await asyncio.create_subprocess_exec(*_MAKING, *words, stdout=pipe, stderr=pipe)
    try:
        made, said = await making.communicate()
    finally:
        if making.returncode is None:  # whoever waits for it was cancelled
            making.kill()
            await making.wait()
    if making.returncode:
        raise _not_made(making.returncode, said.decode(errors="replace").strip().rpartition("\n")[2])
    return made


def _not_made(code: int, said: str) -> ProviderError:
    if code < 0:  # as where memory is short: it had no time to say anything
        told = f"the worker could not be packed: signal {-code} ended the process that does it"
        return ProviderError(ProviderFault.TRANSIENT, told)
    told = f"{said}, and the image lacks it: install it, or make an image with sandherd image build"
    return ProviderError(ProviderFault.REFUSED, told)
