"""Sends signals to processes, and waits until processes have ended."""

import asyncio
import os
import signal
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final

from sandherd.processes import ProcessId

_POLL_INTERVAL: Final = 0.02


async def wait_ended(process: ProcessId, timeout: float | None = None) -> bool:
    """Wait until the process has ended, without polling. Returns False if it has not after `timeout` seconds."""
    descriptor = process.open()
    return descriptor is None or await _readable(descriptor, timeout)


async def ended(pid: int) -> None:
    """Wait until a process has ended, without polling. Returns at once if there is no such process.

    The pid must be that of an unreaped child: otherwise another process could have the pid by now.
    """
    try:
        descriptor = os.pidfd_open(pid)
    except OSError:
        return
    await _readable(descriptor, None)


async def _readable(descriptor: int, timeout: float | None) -> bool:
    """Wait for a pidfd, which becomes readable when its process ends (pidfd_open(2)), and close it."""
    loop = asyncio.get_running_loop()
    over = asyncio.Event()
    loop.add_reader(descriptor, over.set)
    try:
        async with asyncio.timeout(timeout):
            await over.wait()
    except TimeoutError:
        return False
    else:
        return True
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)


def send(processes: Iterable[int], number: signal.Signals) -> None:
    """Send a signal to each process, in the order of pids. A process that has already ended is not an error.

    So parents usually get it before their children: a process whose children end first might end by itself.
    """
    for pid in sorted(processes):
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def send_group(leader: int, number: signal.Signals) -> None:
    """Send a signal to a process group. It is not an error if the group has already ended."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, number)


async def end(find: Callable[[], set[int]], grace: float) -> None:
    """End all processes that `find` finds: SIGTERM, and SIGKILL after `grace` seconds, until none is left.

    A process whose parent ends during a scan is missing from that scan, so two consecutive scans must be empty.
    """
    send(find(), signal.SIGTERM)
    loop = asyncio.get_running_loop()
    deadline = loop.time() + grace
    while left := find() or find():
        if loop.time() >= deadline:
            send(left, signal.SIGKILL)
        # The kernel does not notify when the last of several processes has ended.
        await asyncio.sleep(_POLL_INTERVAL)


def reap(pid: int) -> bool:
    """Reap a child, if it has ended. Returns whether there is no such child any more."""
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        return True  # it is not our child
