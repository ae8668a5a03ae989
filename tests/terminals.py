"""Runs programs on a pseudo-terminal, as a user does."""

import asyncio
import os
import pty
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

Start = Callable[..., Awaitable[asyncio.subprocess.Process]]
ERASED = "\r\x1b[K"


async def on_terminal(start: Start, *words: str, **streams: Any) -> tuple[int, str]:
    """Run a program with a terminal for the streams that are not given; returns its status and what it has shown."""
    controller, terminal = pty.openpty()
    try:
        process = await start(*words, **{"stdin": terminal, "stdout": terminal, "stderr": terminal, **streams})
        os.close(terminal)
        shown = await asyncio.to_thread(read_all, controller)
        return await process.wait(), shown.decode()
    finally:
        os.close(controller)


def read_all(controller: int) -> bytes:
    """Read what is written to a terminal until no process has it open."""
    found = b""
    with suppress(OSError):  # EIO: no process has it open
        while block := os.read(controller, 65536):
            found += block
    return found


def left_on_screen(shown: str) -> str:
    """The text that is left on the screen, without the lines that were erased."""
    return "\n".join(line.rpartition(ERASED)[2].rstrip("\r") for line in shown.split("\n"))
