"""The processes below the worker: reaps them, and finds those of the agent and those of each command.

The worker may be PID 1 of its namespace.
"""

import asyncio
import ctypes
import os
import signal
from collections.abc import Mapping
from contextlib import suppress
from typing import Final

from sandherd.processes import ProcessStat, below, environment_of, living, pids

_PR_SET_CHILD_SUBREAPER: Final = 36
SANDBOX_VARIABLE: Final = "SANDHERD_SANDBOX_ID"
PLACE_VARIABLE: Final = "SANDHERD_PLACE"
EVENTS_VARIABLE: Final = "SANDHERD_EVENTS_FD"
"""Set for the agent and processes it starts, never for a worker."""
EXEC_VARIABLE: Final = "SANDHERD_EXEC_ID"
"""Set for a command that a user runs beside the agent, and for processes it starts."""


class Reaper:
    """Reaps every child that ends: the agent, and orphans it leaves behind. One per process.

    All children are waited for only here, so that no other code collects an exit status.
    """

    def __init__(self) -> None:
        self._awaited: dict[int, asyncio.Future[int]] = {}

    def start(self) -> None:
        """Become the parent of orphaned descendants, and handle SIGCHLD."""
        _set_subreaper(True)
        asyncio.get_running_loop().add_signal_handler(signal.SIGCHLD, self.collect)

    def stop(self) -> None:
        """Stop handling SIGCHLD. Orphans have another parent from now on: here they would never be reaped.

        SIGCHLD is blocked meanwhile, because Python raises `OSError` if it arrives just before its handler is removed.
        """
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
        try:
            asyncio.get_running_loop().remove_signal_handler(signal.SIGCHLD)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        _set_subreaper(False)

    def exit_of(self, child: int) -> asyncio.Future[int]:
        """The exit code of a child that was just started; the negative number of the signal if it was killed."""
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._awaited[child] = future
        return future

    def collect(self) -> None:
        """Reap every child that has ended by now."""
        with suppress(ChildProcessError):
            while True:
                child, status = os.waitpid(-1, os.WNOHANG)
                if child == 0:
                    return
                self._resolve(child, os.waitstatus_to_exitcode(status))

    def _resolve(self, child: int, code: int) -> None:
        future = self._awaited.pop(child, None)
        if future is not None and not future.done():
            future.set_result(code)


def _set_subreaper(enabled: bool) -> None:  # noqa: FBT001  # its only argument
    """Whether this process becomes the parent of orphaned descendants (prctl(2)); PID 1 always does."""
    if os.getpid() != 1:
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, int(enabled), 0, 0, 0)


def descendants(root: int | None = None) -> set[int]:
    """The ids of all living processes below `root`; by default, below this process."""
    return below({root or os.getpid()}, living())


def orphans(place: str) -> set[int]:
    """Processes left by a sandbox's agent and commands whose parents have ended, found by their environment."""
    place_marker = f"{PLACE_VARIABLE}={place}".encode()
    agent_markers = (f"{EVENTS_VARIABLE}=".encode(), f"{EXEC_VARIABLE}=".encode())
    found = ((process, environment_of(process)) for process in pids())
    return {
        process
        for process, variables in found
        if place_marker in variables and any(v.startswith(agent_markers) for v in variables)
    }


class ProcessOwnership:
    """The commands that run beside the agent, each with its first process.

    A process belongs to a command if it is a descendant of the command's first process, is in its session, or has the
    command's mark in its environment. Any other process counts as the agent's.
    """

    def __init__(self) -> None:
        self._leaders: dict[str, int] = {}

    def enter(self, name: str, leader: int) -> None:
        """Register a command. `leader`: its first process, which is the leader of a session."""
        self._leaders[name] = leader

    def remove(self, name: str) -> None:
        """Remove a command that has no process any more."""
        self._leaders.pop(name, None)

    def of(self, name: str) -> set[int]:
        """The living processes of a command."""
        table = living()
        candidates = below({os.getpid()}, table)
        return self._of(name, candidates, table)

    def agents(self) -> set[int]:
        """The living processes below the worker that belong to no command."""
        if not self._leaders:
            return descendants()
        table = living()
        candidates = below({os.getpid()}, table)
        return candidates.difference(*(self._of(name, candidates, table) for name in self._leaders))

    def _of(self, name: str, candidates: set[int], table: Mapping[int, ProcessStat]) -> set[int]:
        leader = self._leaders.get(name)
        mark = f"{EXEC_VARIABLE}={name}".encode()
        roots = {
            process
            for process in candidates
            if process == leader or table[process]["session"] == leader or mark in environment_of(process)
        }
        return roots | below(roots, table) & candidates
