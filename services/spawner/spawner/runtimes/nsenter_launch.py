"""Starts entrants, which are processes that enter a running sandbox to run one command there (see `nsenter_child`)."""

import subprocess
import sys
from contextlib import suppress

from sandherd import processes
from sandherd.processes import ProcessId
from spawner.runtimes import nsenter_child
from spawner.runtimes.fork_server import ForkServer


class SpawnedEntrant:
    """An entrant that was started by exec."""

    def __init__(self, request: bytes, out: int, err: int, report: int) -> None:
        self._request = request
        # Not a process of asyncio, because the pipes are read without waiting until other writers have closed them.
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", nsenter_child.__file__, str(report)], pass_fds=(report,),
            stdin=subprocess.PIPE, stdout=out, stderr=err, env={}, cwd="/",
        )  # fmt: skip
        self.pid = self._process.pid
        self.identity = processes.find(self.pid)

    def send(self) -> None:
        """Send the request. Blocks until it is read."""
        stdin = self._process.stdin
        assert stdin is not None, "Popen was called with a pipe"
        with suppress(OSError):  # the entrant has already ended
            stdin.write(self._request)
        self.close()

    def close(self) -> None:
        """Close the pipe of the request."""
        assert self._process.stdin is not None, "Popen was called with a pipe"
        with suppress(OSError):
            self._process.stdin.close()

    def has_ended(self) -> bool:
        """Whether the entrant has ended."""
        return self._process.poll() is not None


class ForkedEntrant:
    """An entrant that is a child of the fork server, which has received the request."""

    def __init__(self, process: ProcessId) -> None:
        self.pid = process.pid
        self.identity = process

    def send(self) -> None:
        """Do nothing: the fork server has received the request."""

    close = send

    def has_ended(self) -> bool:
        """Whether the entrant has ended."""
        return not self.identity.alive()


def enter(request: bytes, forks: ForkServer | None, *pipes: int) -> SpawnedEntrant | ForkedEntrant:
    """Start an entrant with the write ends of these pipes: for its standard output, standard error and report."""
    process = forks.fork(request, pipes) if forks else None
    return SpawnedEntrant(request, *pipes) if process is None else ForkedEntrant(process)
