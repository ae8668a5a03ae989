"""A process of ours: started, watched, stopped and killed by its own id, and never by a name."""

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

_POLL: Final = 0.01
_PR_SET_PDEATHSIG: Final = 1
_UMASK: Final = 0o077
"""Whatever ours is: what a process of ours writes is its own, and it can read it again."""


class ChildFailedError(Exception):
    """A process ended before it was ready. The message has the last lines of its log."""


@dataclass(frozen=True, kw_only=True)
class Command:
    """What is started. `user` and `group` are whom it runs as, if not us; `linked` ends it when its starter dies."""

    arguments: Sequence[str]
    log: Path
    environment: Mapping[str, str] | None = None
    directory: Path | None = None
    umask: int = _UMASK
    user: int | None = None
    group: int | None = None
    linked: bool = True


class Child:
    """One process started from a command; it may be started again after it ended."""

    def __init__(self, command: Command) -> None:
        self.command = command
        self.started: Callable[[], None] = _nothing
        """Called as soon as it has been started, before it is ready: whoever must know its id learns it."""
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """The process id. Raises `ProcessLookupError` if it was never started."""
        if self._process is None:
            raise ProcessLookupError("not started")
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        return self._process is not None and self._process.poll() is None

    @property
    def status(self) -> int | None:
        """Its exit status (minus the signal's number if one ended it), or None while it runs."""
        return None if self._process is None else self._process.poll()

    def start(self) -> None:
        """Start it, with its output appended to the log."""
        if self.alive:
            raise RuntimeError(f"{self.command.arguments[0]} runs already")
        with os.fdopen(open_log(self.command.log), "ab") as log:
            self._process = _start(self.command, log)
        self.started()

    def send(self, number: signal.Signals) -> None:
        """Send it a signal, if it still runs."""
        if self._process is not None:
            self._process.send_signal(number)

    async def kill(self) -> None:
        """End it at once (SIGKILL), and wait until it is gone."""
        self.send(signal.SIGKILL)
        await self.gone()

    async def stop(self, grace: float, number: signal.Signals = signal.SIGTERM) -> None:
        """Ask it to end, and kill it if it has not after `grace` seconds."""
        self.send(number)
        try:
            async with asyncio.timeout(grace):
                await self.gone()
        except TimeoutError:
            await self.kill()

    async def gone(self) -> None:
        """Wait until it has ended. Works in any event loop, so that a test may stop what a fixture started."""
        if self.alive:
            await ended(self.pid)
        while self.alive:  # noqa: ASYNC110  # reaping it is a system call and no event
            await asyncio.sleep(_POLL)

    async def until(self, ready: Callable[[], bool], seconds: float, what: str) -> None:
        """Wait for a condition while it runs. Raises `ChildFailedError` if it ends first, or if it takes too long."""
        deadline = asyncio.get_running_loop().time() + seconds
        while not ready():
            if not self.alive:
                raise ChildFailedError(f"{what} ended with status {self.status}; its log says:\n{self.last_words()}")
            if asyncio.get_running_loop().time() > deadline:
                raise ChildFailedError(f"{what} is not ready after {seconds:g} s; its log says:\n{self.last_words()}")
            await asyncio.sleep(_POLL)

    def last_words(self, lines: int = 15) -> str:
        """The end of its log."""
        try:
            return "\n".join(self.command.log.read_text(errors="replace").splitlines()[-lines:])
        except FileNotFoundError:
            return ""


async def ended(pid: int) -> None:
    """Wait until a process has ended, without polling: its descriptor becomes readable (pidfd_open(2), Linux 5.3).

    Returns at once if there is none. It may be anybody's child.
    """
    try:
        descriptor = os.pidfd_open(pid)
    except OSError:
        return
    loop = asyncio.get_running_loop()
    over = asyncio.Event()
    loop.add_reader(descriptor, over.set)
    try:
        await over.wait()
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)


def _nothing() -> None:
    """Nobody has to know."""


def _start(command: Command, log: IO[bytes]) -> subprocess.Popen[bytes]:
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
        # A group of its own: an interrupt typed at a terminal is ours to pass on, in order.
        process_group=0,
        preexec_fn=_die_with_parent if command.linked else None,  # noqa: PLW1509  # it makes one system call
    )


def _die_with_parent() -> None:
    """Linux: the kernel kills this process when the one that started it is gone."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
