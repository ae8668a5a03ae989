"""The agent's program: a child in the driver's process group, with the driver's environment."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import Final

from sandherd_drivers.acp.message_lines import MAX_MESSAGE_BYTES, MessageLines

_STEP_SECONDS: Final = 1.0
"""How long each step to end the program may take, in seconds."""


class AgentProgram:
    """A running agent.

    Its standard error, and lines on its standard output that are not messages, are written to the driver's output.
    """

    def __init__(
        self, process: subprocess.Popen[bytes], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._process = process
        self.exit = _watch_exit(process)
        """The exit status of the program once it has ended; the negative number of a signal that ended it."""
        self.lines = MessageLines(reader, writer, self._print)
        self.invalid_lines = 0
        """How many lines on its standard output were not messages."""

    @classmethod
    async def start(cls, argv: Sequence[str], work_dir: Path) -> "AgentProgram":
        """Start an agent. Raises `OSError` or `ValueError` if that fails."""
        process = subprocess.Popen(  # noqa: ASYNC220  # asyncio's own would also wait for other processes that hold the pipes
            list(argv), cwd=work_dir, env=dict(os.environ), stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        return cls(process, *await _open_streams(process))

    async def wait_for_exit(self, timeout: float = _STEP_SECONDS) -> int | None:
        """The exit status of the program, if it ends within this time; otherwise None."""
        await asyncio.wait({self.exit}, timeout=timeout)
        return self.exit.result() if self.exit.done() else None

    async def end(self) -> None:
        """End the program by closing its input, then by SIGTERM, then by SIGKILL."""
        await self.lines.close()
        for send_signal in (self._process.terminate, self._process.kill):
            if await self.wait_for_exit() is not None:
                return
            with suppress(ProcessLookupError):
                send_signal()
        await self.exit

    def _print(self, line: bytes) -> None:
        """Print a line that is not a message, and count it."""
        self.invalid_lines += 1
        sys.stdout.buffer.write(line if line.endswith(b"\n") else line + b"\n")
        sys.stdout.buffer.flush()


def _watch_exit(process: subprocess.Popen[bytes]) -> asyncio.Future[int]:
    """A future of the exit status, done when this process has ended, even if its child processes have not."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[int] = loop.create_future()

    def set_status(status: int) -> None:
        if not ended.done():
            ended.set_result(status)

    def wait() -> None:
        status = process.wait()
        # If the loop has been closed meanwhile, the status is no longer needed.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(set_status, status)

    Thread(target=wait, name="acp-agent-exit", daemon=True).start()
    return ended


async def _open_streams(process: subprocess.Popen[bytes]) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(MAX_MESSAGE_BYTES)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), process.stdout)
    protocol = asyncio.StreamReaderProtocol(asyncio.StreamReader())
    transport, _ = await loop.connect_write_pipe(lambda: protocol, process.stdin)
    return reader, asyncio.StreamWriter(transport, protocol, None, loop)
