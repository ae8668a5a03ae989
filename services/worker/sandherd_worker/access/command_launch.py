"""Starts a command in its own session, with its whole standard input and a pipe for each output, or with a terminal."""

import asyncio
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from sandherd.contracts.requests.terminal import TerminalSize
from sandherd.process_signals import send_group
from sandherd_worker import confinement
from sandherd_worker.access.command_terminal import CommandTerminal, TerminalProtocol, take_control
from sandherd_worker.harnesses.terminal_output import CHUNK_BYTES
from sandherd_worker.processes import Reaper


@dataclass(frozen=True, kw_only=True)
class CommandLaunch:
    """A command to start: its arguments, environment, folder and input."""

    argv: Sequence[str]
    environment: Mapping[str, str]
    folder: Path
    stdin: bytes | IO[bytes] | None
    """The whole standard input: bytes, or a file that the command reads from its beginning. None for no input."""
    terminal: TerminalSize | None = None


class LaunchedCommand:
    """A running command, and the worker's ends of its pipes or its terminal."""

    def __init__(
        self, process: subprocess.Popen[bytes], exit: asyncio.Future[int], terminal: CommandTerminal | None = None
    ) -> None:
        self.exit = exit
        """The exit code of the command, or the negative number of the signal that ended it."""
        self.leader = process.pid
        self.terminal = terminal
        self.stdout = asyncio.StreamReader(CHUNK_BYTES)
        self.stderr = asyncio.StreamReader(CHUNK_BYTES)
        self._process = process
        self._transports: list[asyncio.BaseTransport] = []

    async def connect(self) -> None:
        """Connect to the pipes, or to the terminal, which is then the only output."""
        loop = asyncio.get_running_loop()
        if self.terminal is not None:
            self.stderr.feed_eof()
            terminal_protocol = TerminalProtocol(self.stdout)
            transport, _ = await loop.connect_read_pipe(lambda: terminal_protocol, self.terminal.output())
            self._transports.append(transport)
            return
        for pipe, reader in ((self._process.stdout, self.stdout), (self._process.stderr, self.stderr)):
            protocol = asyncio.StreamReaderProtocol(reader)
            # mypy can't infer a lambda whose default binds the loop's variable.
            transport, _ = await loop.connect_read_pipe(lambda protocol=protocol: protocol, pipe)  # type: ignore[misc]  # mypy infers no default of a lambda
            self._transports.append(transport)

    def close(self) -> None:
        """Close the pipes and the terminal."""
        self.terminal = None
        for transport in self._transports:
            transport.close()
        # The reaper has reaped it; Popen must not wait for a process id that may be another process by now.
        self._process.returncode = self.exit.result() if self.exit.done() else 0

    def abandon(self) -> None:
        """Kill the command, and close its pipes, whether they are connected or not."""
        send_group(self.leader, signal.SIGKILL)
        self.close()
        for pipe in (self._process.stdout, self._process.stderr):
            if pipe is not None:
                pipe.close()


async def launch(command: CommandLaunch, reaper: Reaper) -> LaunchedCommand:
    """Start a command. Raises `OSError` or `ValueError` if it can't be started."""
    if command.terminal is not None:
        return await _launch_with_terminal(command, command.terminal, reaper)
    stdin = _memory_file(command.stdin) if isinstance(command.stdin, bytes) else None
    child_stdin = command.stdin if stdin is None and not isinstance(command.stdin, bytes) else stdin
    try:
        process = subprocess.Popen(  # noqa: ASYNC220  # the reaper waits for it, not asyncio's child watcher
            list(command.argv),
            cwd=command.folder,
            env=dict(command.environment),
            stdin=subprocess.DEVNULL if child_stdin is None else child_stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            preexec_fn=confinement.entry(),  # noqa: PLW1509  # one system call, no lock can be held
            start_new_session=True,
        )
    finally:
        if stdin is not None:
            os.close(stdin)
    confinement.prefer_as_oom_victim(process.pid)
    launched = LaunchedCommand(process, reaper.exit_of(process.pid))
    return await _connected(launched)


async def _launch_with_terminal(command: CommandLaunch, size: TerminalSize, reaper: Reaper) -> LaunchedCommand:
    terminal = CommandTerminal(size)
    end = terminal.command_end
    try:
        process = subprocess.Popen(  # noqa: ASYNC220  # as above
            list(command.argv),
            cwd=command.folder,
            env=dict(command.environment),
            stdin=end,
            stdout=end,
            stderr=end,
            preexec_fn=_enter_terminal,  # noqa: PLW1509  # two system calls, no lock can be held
            start_new_session=True,
        )
    except BaseException:  # it is raised again; only the descriptor must be closed
        os.close(terminal.worker_end)
        raise
    finally:
        os.close(end)
    confinement.prefer_as_oom_victim(process.pid)
    launched = LaunchedCommand(process, reaper.exit_of(process.pid), terminal)
    return await _connected(launched)


async def _connected(launched: LaunchedCommand) -> LaunchedCommand:
    """Connect the pipes of a command, and return it. If this is cancelled, kill it: no other code can end it."""
    try:
        await launched.connect()
    except BaseException:  # it is raised again
        launched.abandon()
        raise
    return launched


def _enter_terminal() -> None:
    take_control()
    confinement.enter()


def _memory_file(content: bytes) -> int:
    """The descriptor of a file in memory with this content, at its beginning."""
    descriptor = os.memfd_create("stdin")
    os.write(descriptor, content)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor
