"""Finds and ends processes that the agent's commands have left, by an environment variable that they inherit.

A terminal's server is not a descendant of the driver. This repeats a part of `sandherd.processes`, because a driver
runs in its SDK's own environment, without `sandherd`.
"""

import asyncio
import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import Final
from uuid import uuid4

_VARIABLE: Final = "SANDHERD_DRIVER"
_POLL_SECONDS: Final = 0.02


def mark_children() -> bytes:
    """Mark all processes that this process will start. Returns the mark to search for later."""
    os.environ[_VARIABLE] = uuid4().hex
    return f"{_VARIABLE}={os.environ[_VARIABLE]}".encode()


def find_marked(mark: bytes) -> set[int]:
    """The living processes that have the mark."""
    return {int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit() and _has_mark(entry, mark)}


async def end(mark: bytes, grace: float) -> None:
    """End the marked processes: by SIGTERM, and by SIGKILL after `grace` seconds, until none is left."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + grace
    _signal(find_marked(mark), signal.SIGTERM)
    while remaining := find_marked(mark):
        if loop.time() >= deadline:
            _signal(remaining, signal.SIGKILL)
        await asyncio.sleep(_POLL_SECONDS)


def _signal(processes: set[int], signal_number: signal.Signals) -> None:
    for process in processes:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(process, signal_number)


def _has_mark(process: Path, mark: bytes) -> bool:
    try:
        return mark in (process / "environ").read_bytes().split(b"\0")
    except OSError:
        return False
