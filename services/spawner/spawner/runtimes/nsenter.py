"""Runs a command in a sandbox of the process runtime, with the worker's namespaces, control groups and limits.

The process that enters the sandbox and runs the command (`nsenter_child`) is called the entrant.
"""

import asyncio
import json
import os
import resource
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from sandherd import processes
from sandherd.processes import ProcessId
from spawner.runtimes import nsenter_launch
from spawner.runtimes.commands import Command, CommandResult, Output, path_below
from spawner.runtimes.contract import RuntimeFailedError, RuntimeFault
from spawner.runtimes.fork_server import ForkServer

_CHUNK_BYTES: Final = 64 * 1024
_KILL_TIMEOUT_SECONDS: Final = 10.0
_STOP_TIMEOUT_SECONDS: Final = 5.0
"""The timeout for the entrant and the holder to stop. In a frozen control group (v2) a process never appears stopped,
but can be killed."""
_POLL_SECONDS: Final = 0.005
_LIMITS: Final = {
    "RLIMIT_NOFILE": "Max open files",
    "RLIMIT_CPU": "Max cpu time",
    "RLIMIT_DATA": "Max data size",
    "RLIMIT_NPROC": "Max processes",
    "RLIMIT_CORE": "Max core file size",
}
"""The limits that a command inherits, each with its name in `/proc/<pid>/limits`."""
_NAME_WIDTH: Final = 26
"""The width of the column with the names in `/proc/<pid>/limits`."""


@dataclass(frozen=True)
class NsenterContext:
    """The worker beside which a command runs, and the command's environment variables.

    `namespaced`: whether the worker has namespaces of its own.
    """

    worker: ProcessId
    namespaced: bool
    groups: list[Path]
    root: Path
    """The parent of the sandbox's own directories, as seen from inside."""
    variables: Mapping[str, str]
    user: int | None = None
    """The sandbox's own host uid."""
    filter: str = ""
    """The sandbox's seccomp program in hexadecimal; empty: no filter."""
    forks: ForkServer | None = None
    """The server that forks the entrant. If it does not run, or is None, the entrant is started by exec."""

    def request(self, command: Command) -> bytes:
        """The request for `nsenter_child`, as JSON. Raises `RuntimeFailedError`."""
        request: dict[str, Any] = {
            "role": "command",
            "argv": list(command.argv),
            "environment": {**self.variables, **command.environment},
            "folder": path_below(command.folder or "work", str(self.root)),
            "groups": [str(group) for group in self.groups],
            "target": [self.worker.pid, self.worker.started] if self.namespaced else None,
            "limits": _limits_of(self.worker),
            "user": self.user,
            "filter": self.filter,
        }
        return json.dumps(request).encode()


async def run(context: NsenterContext, command: Command) -> CommandResult:
    """Run a command to its end; on timeout it is killed with all its descendants. Raises `RuntimeFailedError`."""
    running = await asyncio.to_thread(NsenterCommand, context.request(command), command.max_output, context.forks)
    timed_out = False
    try:
        async with asyncio.timeout(command.seconds):
            await running.wait_reported()
    except TimeoutError:
        timed_out = True
    finally:
        await running.close()
    return running.result(timed_out=timed_out)


class NsenterCommand:
    """An entrant, and our ends of its pipes. The constructor starts the entrant, and blocks briefly."""

    def __init__(self, request: bytes, max_output: int, forks: ForkServer | None = None) -> None:
        (self._out, out), (self._err, err), (self._report_pipe, report) = (os.pipe() for _ in range(3))
        try:
            self._process = nsenter_launch.enter(request, forks, out, err, report)
        finally:
            for descriptor in (out, err, report):
                os.close(descriptor)
        self._output = Output(max_output)
        self._reported = b""

    async def wait_reported(self) -> None:
        """Wait until the entrant has reported how the command ended, or has ended without a report."""
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[None] = loop.create_future()
        for descriptor in (self._out, self._err, self._report_pipe):
            os.set_blocking(descriptor, False)
            loop.add_reader(descriptor, self._read_report, descriptor, ended)
        await asyncio.to_thread(self._process.send)
        await ended

    async def close(self) -> None:
        """End the remaining processes of the command, read the rest of its output, and close the pipes."""
        try:
            await self._end()
        finally:
            for descriptor in (self._out, self._err):
                self._drain(descriptor)
            for descriptor in (self._out, self._err, self._report_pipe):
                asyncio.get_running_loop().remove_reader(descriptor)
                os.close(descriptor)
            self._process.close()

    def result(self, *, timed_out: bool) -> CommandResult:
        """The result of the command. Raises `RuntimeFailedError` if the sandbox could not be entered."""
        report = json.loads(self._reported) if self._reported else {}
        if "error" in report:
            raise RuntimeFailedError(RuntimeFault.REFUSED, f"can't run commands in the sandbox: {report['error']}")
        if "code" not in report and not timed_out:
            raise RuntimeFailedError(RuntimeFault.UNAVAILABLE, "the process that runs the command was killed")
        return self._output.result(report.get("code"), timed_out=timed_out)

    def _read_report(self, descriptor: int, ended: "asyncio.Future[None]") -> None:
        data = _read(descriptor)
        if data is None:
            return
        if not data:
            asyncio.get_running_loop().remove_reader(descriptor)
        if descriptor != self._report_pipe:
            self._output.add(data, error=descriptor == self._err)
            return
        self._reported += data
        if not data and not ended.done():
            ended.set_result(None)

    def _drain(self, descriptor: int) -> None:
        """Read the output of the ended command that is still in the pipe. Later output of other writers is ignored."""
        os.set_blocking(descriptor, False)
        for _ in range(_CHUNK_BYTES // 4096):  # limited, because other processes may continue to write
            if not (data := _read(descriptor)):
                return
            self._output.add(data, error=descriptor == self._err)

    async def _end(self) -> None:
        """Kill all descendants of the command, then its holder, then the `nsenter_child` process."""
        began = asyncio.get_running_loop().time()
        while not self._process.has_ended():
            elapsed = asyncio.get_running_loop().time() - began
            for process in self._next_to_kill(assume_stopped=elapsed > _STOP_TIMEOUT_SECONDS):
                process.signal(signal.SIGKILL)
            if elapsed > _KILL_TIMEOUT_SECONDS:
                raise RuntimeFailedError(RuntimeFault.UNAVAILABLE, "the command's processes could not be killed")
            await asyncio.sleep(_POLL_SECONDS)

    def _next_to_kill(self, *, assume_stopped: bool) -> list[ProcessId]:
        """The processes to kill next. Empty until the entrant and the holder have stopped, or `assume_stopped` is true.

        While these two are stopped, neither starts a process. The stopped holder is the parent of the command's orphans
        and does not reap them. So if all descendants of the holder are zombies, no process of the command is left.
        """
        if not assume_stopped and not _stop(self._process.identity):
            return []
        holders = processes.children(self._process.pid)
        if not assume_stopped and not all(_stop(processes.find(holder)) for holder in holders):
            return []
        below = processes.descendants(self._process.pid).difference(holders)
        targets = [pid for pid in sorted(below) if not processes.is_zombie(pid)]
        if not targets and all(_has_only_zombies(holder) for holder in holders):
            targets = [pid for pid in holders if not processes.is_zombie(pid)] or [self._process.pid]
        identified = [process for pid in targets if (process := processes.find(pid))]
        # A forked entrant leaves no zombie: if it has ended meanwhile, its id may be that of another process.
        return [] if self._process.has_ended() else identified


def _has_only_zombies(holder: int) -> bool:
    """Whether the descendants of a stopped holder, which reaps nothing, are all zombies.

    The kernel gives the children of a process to the holder before it shows that process as a zombie. So a child that
    was missed in the first reading is among the holder's own children in the second.
    """
    first = processes.children(holder)
    return all(processes.is_zombie(pid) for pid in first) and set(processes.children(holder)) <= set(first)


def _stop(process: ProcessId | None) -> bool:
    """Stop a process. Returns whether it has already stopped or ended."""
    if process is None:
        return True
    if not processes.is_stopped(process.pid):
        process.signal(signal.SIGSTOP)
    return processes.is_stopped(process.pid)


def _read(descriptor: int) -> bytes | None:
    try:
        return os.read(descriptor, _CHUNK_BYTES)
    except BlockingIOError:
        return None


def _limits_of(worker: ProcessId) -> dict[str, tuple[int, int]]:
    """The soft and hard limits of the worker's process. Raises `RuntimeFailedError`.

    They are read as text, because prlimit(2) on a process of another uid needs a capability that a spawner in a
    container may lack.
    """
    try:
        lines = Path("/proc", str(worker.pid), "limits").read_text().splitlines()
    except OSError as error:
        raise RuntimeFailedError(RuntimeFault.UNAVAILABLE, "its worker has just ended") from error
    values = {line[:_NAME_WIDTH].strip(): line[_NAME_WIDTH:].split() for line in lines}
    return {limit: (_number(values[name][0]), _number(values[name][1])) for limit, name in _LIMITS.items()}


def _number(text: str) -> int:
    return resource.RLIM_INFINITY if text == "unlimited" else int(text)
