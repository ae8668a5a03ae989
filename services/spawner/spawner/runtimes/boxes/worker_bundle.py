"""An archive with the worker, for boxes whose image lacks it.

A separate process packs the archive. Packing takes half a second, in which the spawner would handle nothing else, and
memory that the process would not release.
"""

import asyncio
import sys
from typing import Final
from weakref import WeakKeyDictionary

from sandherd.worker_bundle import COMPILE, LABEL, WORKER
from spawner.runtimes.boxes.provider import ProviderError, ProviderFault

__all__ = ["COMPILE", "LABEL", "WORKER", "cached_archive", "digest", "pack"]

_PACKER: Final = (sys.executable, "-P", "-m", "sandherd.worker_bundle")
_archives: dict[tuple[str, ...], bytes] = {}
"""The cached outputs of the packing process, by its arguments."""
_locks: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()
"""A lock for each event loop, so that concurrent callers wait for one packing process."""


async def cached_archive() -> bytes:
    """The archive that `pack` returns, cached for callers that need it for each box. Raises `ProviderError`."""
    return await _cached()


async def pack() -> bytes:
    """A new gzipped archive, to be unpacked at `WORKER`. Raises `ProviderError`."""
    return await _run_packer()


async def digest() -> str:
    """The digest that identifies this version of the worker. Raises `ProviderError`."""
    return (await _cached("digest")).decode()


async def _cached(*arguments: str) -> bytes:
    async with _locks.setdefault(asyncio.get_running_loop(), asyncio.Lock()):
        if arguments not in _archives:
            _archives[arguments] = await _run_packer(*arguments)
        return _archives[arguments]


async def _run_packer(*arguments: str) -> bytes:
    pipe = asyncio.subprocess.PIPE
    packer = await asyncio.create_subprocess_exec(*_PACKER, *arguments, stdout=pipe, stderr=pipe)
    try:
        output, errors = await packer.communicate()
    finally:
        if packer.returncode is None:  # the caller was cancelled
            packer.kill()
            await packer.wait()
    if packer.returncode:
        raise _packer_error(packer.returncode, errors.decode(errors="replace").strip().rpartition("\n")[2])
    return output


def _packer_error(code: int, error: str) -> ProviderError:
    if code < 0:  # killed, for example for lack of memory, so that the process could not report an error
        message = f"could not pack the worker: the packing process was ended by signal {-code}"
        return ProviderError(ProviderFault.TRANSIENT, message)
    message = f"{error}, and the image does not contain it: install it, or build an image with sandherd image build"
    return ProviderError(ProviderFault.REFUSED, message)
