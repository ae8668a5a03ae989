"""The agent's program: a child in our process group, with the environment that we were given."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import Final

from sandherd_drivers.acp.lines import LONGEST_MESSAGE, MessageLines

_PATIENCE: Final = 1.0
"""For each of the ways to end it."""


class AgentProgram:
    """A running agent. What it prints on its standard error is output, as what it prints beside its messages."""

    def __init__(
        self, process: subprocess.Popen[bytes], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._process = process
        self.exit = _exit_of(process)
        """Its exit status, once it has ended; the negative number of the signal that ended it."""
        self.lines = MessageLines(reader, writer, self._print)
        self.garbage = 0
        """How many lines on its standard output were no messages."""

    @classmethod
    async def start(cls, argv: Sequence[str], work_dir: Path) -> "AgentProgram":
        """Start it. Raises `OSError` or `ValueError` if that can't be done."""
        process = subprocess.Popen(  # noqa: ASYNC220  # asyncio's own would wait for whatever holds the pipes, too
            list(argv), cwd=work_dir, env=dict(os.environ), stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        return cls(process, *await _streams(process))

    async def ended(self, patience: float = _PATIENCE) -> int | None:
        """Its exit status, if it ends within this time."""
        await asyncio.wait({self.exit}, timeout=patience)
        return self.exit.result() if self.exit.done() else None

    async def end(self) -> None:
        """End it: by the end of its input, by SIGTERM, by SIGKILL."""
        await self.lines.close()
        for ask in (self._process.terminate, self._process.kill):
            if await self.ended() is not None:
                return
            with suppress(ProcessLookupError):
                ask()
        await self.exit

    def _print(self, line: bytes) -> None:
        self.garbage += 1
        sys.stdout.buffer.write(line if line.endswith(b"\n") else line + b"\n")
        sys.stdout.buffer.flush()


def _exit_of(process: subprocess.Popen[bytes]) -> asyncio.Future[int]:
    """Done when the process itself has ended, whatever it leaves behind."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[int] = loop.create_future()

    def tell(status: int) -> None:
        if not ended.done():
            ended.set_result(status)

    def wait() -> None:
        status = process.wait()
        # The loop may be closed by then: nobody wants to know any more.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(tell, status)

    Thread(target=wait, name="acp-agent-exit", daemon=True).start()
    return ended


async def _streams(process: subprocess.Popen[bytes]) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(LONGEST_MESSAGE)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), process.stdout)
    protocol = asyncio.StreamReaderProtocol(asyncio.StreamReader())
    transport, _ = await loop.connect_write_pipe(lambda: protocol, process.stdin)
    return reader, asyncio.StreamWriter(transport, protocol, None, loop)
