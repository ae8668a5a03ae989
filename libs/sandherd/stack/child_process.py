"""Starts, watches, stops and kills a child process by its process id, never by its name."""

import asyncio
import ctypes
import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from sandherd.private_files import open_log
from sandherd.process_signals import ended

_POLL_SECONDS: Final = 0.01
_PR_SET_PDEATHSIG: Final = 1
_UMASK: Final = 0o077
"""The umask of processes: only their own user can read the files that they create."""


class ChildFailedError(Exception):
    """A process ended before it was ready. The message has the last lines of its log."""


@dataclass(frozen=True, kw_only=True)
class ChildCommand:
    """A command to start. `user` and `group` are the ids that it runs as, by default our own.

    With `linked` the kernel kills the process when its parent ends.
    """

    arguments: Sequence[str]
    log: Path
    environment: Mapping[str, str] | None = None
    directory: Path | None = None
    umask: int = _UMASK
    user: int | None = None
    group: int | None = None
    linked: bool = True


class ChildProcess:
    """The process of a command. It may be started again after it has ended."""

    def __init__(self, command: ChildCommand) -> None:
        self.command = command
        self.on_start: Callable[[], None] = _do_nothing
        """Called once the process is started, before it is ready, so that its id can be recorded."""
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """The process id. Raises `ProcessLookupError` if it was never started."""
        if self._process is None:
            raise ProcessLookupError("not started")
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether the process is running."""
        return self._process is not None and self._process.poll() is None

    @property
    def status(self) -> int | None:
        """The exit status, or the negative number of the signal that ended the process; None while it is running."""
        return None if self._process is None else self._process.poll()

    def start(self) -> None:
        """Start the process. Its output is appended to the log. Raises `RuntimeError` if it is running."""
        if self.alive:
            raise RuntimeError(f"{self.command.arguments[0]} is already running")
        with os.fdopen(open_log(self.command.log), "ab") as log:
            self._process = _start(self.command, log)
        self.on_start()

    def send(self, number: signal.Signals) -> None:
        """Send the process a signal, if it is running."""
        if self._process is not None:
            self._process.send_signal(number)

    async def kill(self) -> None:
        """Kill the process (SIGKILL), and wait until it has ended."""
        self.send(signal.SIGKILL)
        await self.wait_ended()

    async def stop(self, grace: float, number: signal.Signals = signal.SIGTERM) -> None:
        """Send the process the signal `number`, and kill it if it has not ended after `grace` seconds."""
        self.send(number)
        try:
            async with asyncio.timeout(grace):
                await self.wait_ended()
        except TimeoutError:
            await self.kill()

    async def wait_ended(self) -> None:
        """Wait until the process has ended. It may have been started in another event loop, such as a fixture's."""
        if self.alive:
            await ended(self.pid)
        while self.alive:  # noqa: ASYNC110  # reaping it is a system call, not an event
            await asyncio.sleep(_POLL_SECONDS)

    async def until(self, ready: Callable[[], bool], seconds: float, name: str) -> None:
        """Wait until `ready` returns true. Raises `ChildFailedError` if the process ends before, or after `seconds`."""
        deadline = asyncio.get_running_loop().time() + seconds
        while not ready():
            if not self.alive:
                raise ChildFailedError(f"{name} ended with status {self.status}; its log:\n{self.last_lines()}")
            if asyncio.get_running_loop().time() > deadline:
                raise ChildFailedError(f"{name} is not ready after {seconds:g} s; its log:\n{self.last_lines()}")
            await asyncio.sleep(_POLL_SECONDS)

    def last_lines(self, lines: int = 15) -> str:
        """The last lines of its log."""
        try:
            return "\n".join(self.command.log.read_text(errors="replace").splitlines()[-lines:])
        except FileNotFoundError:
            return ""


def _do_nothing() -> None:
    """The default for `ChildProcess.on_start`: does nothing."""


def _start(command: ChildCommand, log: IO[bytes]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        list(command.arguments),
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        env=dict(command.environment) if command.environment is not None else None,
        cwd=command.directory,
        user=command.user,
        group=command.group,
        extra_groups=None if command.user is None else [],
        umask=command.umask,
        # A separate group, so that an interrupt at a terminal does not reach it: the parent ends processes in order.
        process_group=0,
        preexec_fn=_end_with_parent if command.linked else None,  # noqa: PLW1509  # one system call only
    )


def _end_with_parent() -> None:
    """Let the kernel kill this process when its parent ends (Linux only)."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
