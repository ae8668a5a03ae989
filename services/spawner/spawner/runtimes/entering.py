"""Running a command in a sandbox of the process runtime, beside its worker: in its namespaces, groups and limits."""

import asyncio
import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from spawner.runtimes import entrant, processes
from spawner.runtimes.commands import Command, Output, Ran, placed
from spawner.runtimes.contract import RuntimeFailedError, RuntimeFault
from spawner.runtimes.processes import ProcessId

_CHUNK: Final = 64 * 1024
_KILL_SECONDS: Final = 10.0
_STOP_SECONDS: Final = 5.0
"""A process in a frozen control group (v2) never shows that it has stopped, and can be killed."""
_LOOK_AGAIN: Final = 0.005
_LIMITS: Final = {
    "RLIMIT_NOFILE": "Max open files",
    "RLIMIT_CPU": "Max cpu time",
    "RLIMIT_DATA": "Max data size",
    "RLIMIT_NPROC": "Max processes",
    "RLIMIT_CORE": "Max core file size",
}
"""Each with its name in `/proc/<pid>/limits`."""
_NAME_WIDTH: Final = 26


@dataclass(frozen=True)
class Entry:
    """Where a command is to run: beside a worker, with these variables. `namespaced`: in namespaces of its own."""

    worker: ProcessId
    namespaced: bool
    groups: list[Path]
    root: Path
    """Where the sandbox's own folders are, as they are seen from inside."""
    variables: Mapping[str, str]
    user: int | None = None
    """The sandbox's own host uid."""
    filter: str = ""
    """Its seccomp program in hexadecimal; empty: it has none."""

    def request(self, command: Command) -> bytes:
        """What `entrant` is told. Raises `RuntimeFailedError`."""
        told: dict[str, Any] = {
            "argv": list(command.argv),
            "environment": {**self.variables, **command.environment},
            "folder": placed(command.folder or "work", str(self.root)),
            "groups": [str(group) for group in self.groups],
            "target": [self.worker.pid, self.worker.started] if self.namespaced else None,
            "limits": _limits_of(self.worker),
            "user": self.user,
            "filter": self.filter,
        }
        return json.dumps(told).encode()


async def run(entry: Entry, command: Command) -> Ran:
    """Run it to its end; at its time limit it is ended, with all that it has started. Raises `RuntimeFailedError`."""
    visit = await asyncio.to_thread(Visit, entry.request(command), command.most_output)
    late = False
    try:
        async with asyncio.timeout(command.seconds):
            await visit.told()
    except TimeoutError:
        late = True
    finally:
        await visit.leave()
    return visit.ran(late=late)


class Visit:
    """One entrant, and our ends of its pipes. Making one starts it, which takes a moment."""

    def __init__(self, request: bytes, most_output: int) -> None:
        said, told = os.pipe()
        # Not asyncio's: our own pipes are read on after the command's end, but not until others have closed them too.
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", entrant.__file__, str(told)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={}, pass_fds=(told,), cwd="/",
        )  # fmt: skip
        os.close(told)
        self._output = Output(most_output)
        self._answer = b""
        self._said = said
        self._request = request

    async def told(self) -> None:
        """Return when it has said how the command ended, or has ended without a word."""
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[None] = loop.create_future()
        for descriptor in (self._out, self._err, self._said):
            os.set_blocking(descriptor, False)
            loop.add_reader(descriptor, self._hear, descriptor, ended)
        await asyncio.to_thread(self._ask)
        await ended

    async def leave(self) -> None:
        """End what is still there of it, and let go of the pipes, with what is in them read."""
        try:
            await self._end()
        finally:
            for descriptor in (self._out, self._err):
                self._drain(descriptor)
            for descriptor in (self._out, self._err, self._said):
                asyncio.get_running_loop().remove_reader(descriptor)
            for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
                with suppress(OSError):
                    _there(pipe).close()
            os.close(self._said)

    def ran(self, *, late: bool) -> Ran:
        """How it ended. Raises `RuntimeFailedError` if the sandbox could not be entered."""
        answer = json.loads(self._answer) if self._answer else {}
        if "error" in answer:
            raise RuntimeFailedError(RuntimeFault.REFUSED, f"nothing can be run there: {answer['error']}")
        if "code" not in answer and not late:
            raise RuntimeFailedError(RuntimeFault.UNAVAILABLE, "what runs commands in the sandbox was ended")
        return self._output.ran(answer.get("code"), late=late)

    @property
    def _out(self) -> int:
        return int(_there(self._process.stdout).fileno())

    @property
    def _err(self) -> int:
        return int(_there(self._process.stderr).fileno())

    def _ask(self) -> None:
        with suppress(OSError):  # it has ended at once
            stdin = _there(self._process.stdin)
            stdin.write(self._request)
            stdin.close()

    def _hear(self, descriptor: int, ended: "asyncio.Future[None]") -> None:
        data = _read(descriptor)
        if data is None:
            return
        if not data:
            asyncio.get_running_loop().remove_reader(descriptor)
        if descriptor != self._said:
            self._output.add(data, error=descriptor == self._err)
            return
        self._answer += data
        if not data and not ended.done():
            ended.set_result(None)

    def _drain(self, descriptor: int) -> None:
        """What the command itself has written is in the pipe when it has ended; what others still write is not."""
        os.set_blocking(descriptor, False)
        for _ in range(_CHUNK // 4096):
            if not (data := _read(descriptor)):
                return
            self._output.add(data, error=descriptor == self._err)

    async def _end(self) -> None:
        """End all that the command has started, then the holder of it, then the entrant."""
        began = asyncio.get_running_loop().time()
        while self._process.poll() is None:
            past = asyncio.get_running_loop().time() - began
            for process in self._to_end(stopped=past > _STOP_SECONDS):
                process.signal(signal.SIGKILL)
            if past > _KILL_SECONDS:
                raise RuntimeFailedError(RuntimeFault.UNAVAILABLE, "a command does not end")
            await asyncio.sleep(_LOOK_AGAIN)

    def _to_end(self, *, stopped: bool) -> list[ProcessId]:
        """What to kill next. Nothing, until the entrant and the holder have stopped (or are taken to be `stopped`).

        Stopped, neither starts another process, and the holder, which inherits what the command leaves behind, stays
        and reaps nothing: if there are only zombies below it, nothing of the command is left.
        """
        if not stopped and not _stop(self._process.pid):
            return []
        holders = processes.children(self._process.pid)
        if not stopped and not all(_stop(holder) for holder in holders):
            return []
        below = processes.descendants(self._process.pid).difference(holders)
        left = [pid for pid in sorted(below) if not processes.is_zombie(pid)]
        if not left and all(_has_only_zombies(holder) for holder in holders):
            left = [pid for pid in holders if not processes.is_zombie(pid)] or [self._process.pid]
        return [found for pid in left if (found := processes.find(pid))]


def _has_only_zombies(holder: int) -> bool:
    """Whether nothing alive is below a process that reaps nothing.

    The kernel passes on the children of a process before it shows that process as a zombie. So what one of the first
    look had started, unseen, is among the holder's own children in the second.
    """
    first = processes.children(holder)
    return all(processes.is_zombie(pid) for pid in first) and set(processes.children(holder)) <= set(first)


def _stop(pid: int) -> bool:
    """Stop a process. Returns whether it has stopped or ended already."""
    if not processes.is_stopped(pid) and (process := processes.find(pid)):
        process.signal(signal.SIGSTOP)
    return processes.is_stopped(pid)


def _there(pipe: Any) -> Any:
    assert pipe is not None, "every pipe was asked for"
    return pipe


def _read(descriptor: int) -> bytes | None:
    try:
        return os.read(descriptor, _CHUNK)
    except BlockingIOError:
        return None


def _limits_of(worker: ProcessId) -> dict[str, tuple[int, int]]:
    """The limits of each process, as the worker has them. Raises `RuntimeFailedError`.

    Read as text: prlimit(2) on a process of another uid needs a capability that a spawner in a container may lack.
    """
    try:
        lines = Path("/proc", str(worker.pid), "limits").read_text().splitlines()
    except OSError as error:
        raise RuntimeFailedError(RuntimeFault.UNAVAILABLE, "its worker has just ended") from error
    values = {line[:_NAME_WIDTH].strip(): line[_NAME_WIDTH:].split() for line in lines}
    return {limit: (_number(values[name][0]), _number(values[name][1])) for limit, name in _LIMITS.items()}


def _number(text: str) -> int:
    return resource.RLIM_INFINITY if text == "unlimited" else int(text)
