"""The processes below the worker: reaping them, finding them, ending them. It may be process 1 of its namespace."""

import asyncio
import ctypes
import os
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

_PR_SET_CHILD_SUBREAPER: Final = 36
_LOOK_AGAIN: Final = 0.02
_PROC: Final = Path("/proc")
SANDBOX_VARIABLE: Final = "SANDHERD_SANDBOX_ID"
PLACE_VARIABLE: Final = "SANDHERD_PLACE"
EVENTS_VARIABLE: Final = "SANDHERD_EVENTS_FD"
"""Set for the agent and what it starts, never for a worker."""
EXEC_VARIABLE: Final = "SANDHERD_EXEC_ID"
"""Set for a command that somebody runs beside the agent, and for what it starts."""


Parent = tuple[int, int]
"""A process's parent, and the session that it is in."""


class Reaper:
    """Collects every child that ends, the agent and the orphans it leaves behind. One per process.

    All children are waited for here and nowhere else, so that no exit status is taken away from its reader.
    """

    def __init__(self) -> None:
        self._awaited: dict[int, asyncio.Future[int]] = {}

    def start(self) -> None:
        """Become the parent of orphaned descendants and begin to listen for ended children."""
        if os.getpid() != 1:
            ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        asyncio.get_running_loop().add_signal_handler(signal.SIGCHLD, self.collect)

    def stop(self) -> None:
        """Listen no more."""
        asyncio.get_running_loop().remove_signal_handler(signal.SIGCHLD)

    def exit_of(self, child: int) -> asyncio.Future[int]:
        """The exit code of a child that was just started; the negative number of the signal that killed it."""
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._awaited[child] = future
        return future

    def collect(self) -> None:
        """Wait for every child that has ended by now."""
        with suppress(ChildProcessError):
            while True:
                child, status = os.waitpid(-1, os.WNOHANG)
                if child == 0:
                    return
                self._tell(child, os.waitstatus_to_exitcode(status))

    def _tell(self, child: int, code: int) -> None:
        future = self._awaited.pop(child, None)
        if future is not None and not future.done():
            future.set_result(code)


def descendants(root: int | None = None) -> set[int]:
    """The ids of all living processes below `root` (this process unless said otherwise); ended ones don't count."""
    return below({root or os.getpid()}, parents())


def below(roots: set[int], table: Mapping[int, Parent]) -> set[int]:
    """The processes of the table that descend from these; the roots themselves are not counted."""
    children: dict[int, list[int]] = {}
    for process, (parent, _) in table.items():
        children.setdefault(parent, []).append(process)
    found: set[int] = set()
    waiting = list(roots)
    while waiting:
        waiting += (fresh := [child for child in children.get(waiting.pop(), ()) if child not in found])
        found.update(fresh)
    return found


def left_behind(place: str) -> set[int]:
    """What a sandbox's agent and commands left, told by their environment: for when their parents are gone."""
    mine = f"{PLACE_VARIABLE}={place}".encode()
    theirs = (f"{EVENTS_VARIABLE}=".encode(), f"{EXEC_VARIABLE}=".encode())
    found = ((process, variables_of(process)) for process in _numbers())
    return {
        process for process, variables in found if mine in variables and any(v.startswith(theirs) for v in variables)
    }


def send(processes: Iterable[int], what: signal.Signals) -> None:
    """Send a signal to each; one that is gone already is no error.

    The oldest first: one that sees what it has started go, before it is told itself, would end as if by its own will.
    """
    for process in sorted(processes):
        with suppress(ProcessLookupError, PermissionError):
            os.kill(process, what)


def send_group(leader: int, what: signal.Signals) -> None:
    """Send a signal to a process group; one that is gone already is no error."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, what)


async def end(find: Callable[[], set[int]], grace: float) -> None:
    """End all that `find` finds: SIGTERM, and SIGKILL after `grace` seconds, until nothing is left.

    A process whose parent ends while we look hangs below nobody for that look: nothing is left when that is seen twice.
    """
    send(find(), signal.SIGTERM)
    loop = asyncio.get_running_loop()
    deadline = loop.time() + grace
    while left := find() or find():
        if loop.time() >= deadline:
            send(left, signal.SIGKILL)
        # The kernel tells nobody when the last of several processes is gone.
        await asyncio.sleep(_LOOK_AGAIN)


def memory_of(processes: Iterable[int]) -> int:
    """What these processes hold in memory together, in bytes (resident; shared pages count for each)."""
    page = os.sysconf("SC_PAGE_SIZE")
    return sum(_resident_pages(process) for process in processes) * page


def _resident_pages(process: int) -> int:
    try:
        return int((_PROC / str(process) / "statm").read_bytes().split()[1])
    except (OSError, IndexError):
        return 0


def _numbers() -> Iterator[int]:
    return (int(name) for name in os.listdir(_PROC) if name.isdigit())  # noqa: PTH208  # names are all that is wanted


def parents() -> dict[int, Parent]:
    """Each living process with its parent and its session."""
    found: dict[int, Parent] = {}
    for process in _numbers():
        try:
            fields = (_PROC / str(process) / "stat").read_bytes().rpartition(b")")[2].split()[:4]
            state, parent, _, session = fields
        except (OSError, ValueError):
            continue
        if state not in {b"Z", b"X"}:
            found[process] = (int(parent), int(session))
    return found


def variables_of(process: int) -> list[bytes]:
    """The environment that a process was started with; nothing if it is gone or not ours to read."""
    try:
        return (_PROC / str(process) / "environ").read_bytes().split(b"\0")
    except OSError:
        return []
