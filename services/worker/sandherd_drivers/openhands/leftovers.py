"""What the agent's commands have left running. A terminal's server is nobody's child: a variable tells whose it is."""

import asyncio
import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import Final
from uuid import uuid4

_VARIABLE: Final = "SANDHERD_DRIVER"
_LOOK_AGAIN: Final = 0.02


def mark() -> bytes:
    """Mark what this process will start. The mark is to be looked for later."""
    os.environ[_VARIABLE] = uuid4().hex
    return f"{_VARIABLE}={os.environ[_VARIABLE]}".encode()


def marked(mark: bytes) -> set[int]:
    """The living processes that have the mark."""
    return {int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit() and _has(entry, mark)}


async def end(mark: bytes, grace: float) -> None:
    """End them: SIGTERM, and SIGKILL after `grace` seconds, until none is left."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + grace
    _send(marked(mark), signal.SIGTERM)
    while left := marked(mark):
        if loop.time() >= deadline:
            _send(left, signal.SIGKILL)
        await asyncio.sleep(_LOOK_AGAIN)


def _send(processes: set[int], what: signal.Signals) -> None:
    for process in processes:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(process, what)


def _has(process: Path, mark: bytes) -> bool:
    try:
        return mark in (process / "environ").read_bytes().split(b"\0")
    except OSError:
        return False
