"""Starts a program with pipes to it: standard input, one stream of output, and a pipe for its own events."""

import asyncio
import os
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from signal import SIG_DFL, SIGINT, Signals, signal
from typing import Final

from sandherd.process_signals import send_group
from sandherd_worker import confinement
from sandherd_worker.harnesses.event_lines import READ_BYTES
from sandherd_worker.harnesses.terminal_output import CHUNK_BYTES
from sandherd_worker.processes import EVENTS_VARIABLE, Reaper

EVENTS_FD: Final = 3
"""Where the program writes its own events: one digit, since a POSIX shell takes no more in `>&3`."""


@dataclass(frozen=True, kw_only=True)
class Program:
    """What to run, and where. `prompt` is the task's text, for the turn's preview.

    `stdin` is the whole standard input; None: standard input is for messages.
    """

    argv: Sequence[str]
    environment: Mapping[str, str]
    work_dir: Path
    prompt: str = ""
    stdin: str | None = None


class RunningProgram:
    """A program that runs in its own session, and the worker's ends of its pipes."""

    def __init__(self, process: subprocess.Popen[bytes], exit: asyncio.Future[int]) -> None:
        self.exit = exit
        """Its exit code, or the negative number of the signal that ended it."""
        self.leader = process.pid
        self.output = asyncio.StreamReader(CHUNK_BYTES)
        self.events = asyncio.StreamReader(READ_BYTES)
        self._process = process
        self._transports: list[asyncio.BaseTransport] = []
        self._stdin: asyncio.StreamWriter | None = None

    async def connect(self, events: int) -> None:
        """Connect to the pipes. `events` is the reading end of the events pipe."""
        process = self._process
        loop = asyncio.get_running_loop()
        for pipe, reader in ((process.stdout, self.output), (os.fdopen(events, "rb"), self.events)):
            protocol = asyncio.StreamReaderProtocol(reader)
            # mypy can't infer a lambda whose default binds the loop's variable.
            transport, _ = await loop.connect_read_pipe(lambda protocol=protocol: protocol, pipe)  # type: ignore[misc]  # as above
            self._transports.append(transport)
        closed = asyncio.StreamReaderProtocol(unused := asyncio.StreamReader())
        writing, _ = await loop.connect_write_pipe(lambda: closed, process.stdin)
        # So that `drain` returns when the pipe has all data, not a buffer of this process.
        writing.set_write_buffer_limits(0)
        self._stdin = asyncio.StreamWriter(writing, closed, unused, loop)
        self._transports.append(writing)

    async def write(self, line: bytes) -> None:
        """Write to its standard input; waits until the pipe has taken it. Raises `BrokenPipeError` if it is closed."""
        if self._stdin is None or self._stdin.is_closing():
            raise BrokenPipeError
        self._stdin.write(line)
        await self._stdin.drain()
        if self._stdin.is_closing():
            raise BrokenPipeError

    async def write_stdin(self, text: bytes) -> None:
        """Write this to its standard input and close it; a program that doesn't read it is not an error."""
        with suppress(OSError):
            await self.write(text)
        if self._stdin is not None:
            self._stdin.close()

    def signal(self, what: Signals) -> None:
        """Send a signal to its process group, if it still runs."""
        if not self.exit.done():
            send_group(self._process.pid, what)

    def close(self) -> None:
        """Close the pipes."""
        for transport in self._transports:
            transport.close()
        # The reaper has reaped it; Popen must not wait for a process id that may be another process by now.
        self._process.returncode = self.exit.result() if self.exit.done() else None


def _prepare(events: int) -> None:
    """In the child: move the events pipe to its descriptor, reset an ignored SIGINT, and cut the access to the worker.

    For the latter see `confinement`.
    """
    os.dup2(events, EVENTS_FD)
    signal(SIGINT, SIG_DFL)
    confinement.enter()


async def launch(program: Program, reaper: Reaper) -> RunningProgram:
    """Start the program. Raises `OSError` or `ValueError` if it can't be started."""
    reading, writing = os.pipe()
    try:
        process = subprocess.Popen(  # noqa: ASYNC220  # the reaper waits for it, not asyncio's child watcher
            list(program.argv),
            cwd=program.work_dir,
            env={**program.environment, EVENTS_VARIABLE: str(EVENTS_FD)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=(EVENTS_FD,),
            preexec_fn=lambda: _prepare(writing),  # noqa: PLW1509  # three system calls, no lock can be held
            start_new_session=True,
        )
    except BaseException:  # it is raised again, and no descriptor is leaked
        os.close(reading)
        raise
    finally:
        os.close(writing)
    confinement.prefer_as_oom_victim(process.pid)
    running = RunningProgram(process, reaper.exit_of(process.pid))
    await running.connect(reading)
    return running
