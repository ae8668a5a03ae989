"""The user namespace of an unprivileged spawner, in which it can give each sandbox a subordinate uid of its user.

`enter` is called once, before there is a second thread. Processes in a user namespace can't be managed from another
one, even with the same mappings. So a restarted spawner joins the namespace of the shims of sandboxes that still run.
The namespace exists as long as any process is in it.
"""

import ctypes
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sandherd.processes import ProcessId
from spawner.runtimes import shim
from spawner.runtimes.layout import Layout, SandboxDirectory
from spawner.runtimes.sandbox_users import SandboxUsers
from spawner.runtimes.subordinate_ids import NoSubordinateError, SubordinateUser, find_ranges, sandbox_uids_of

RESERVATIONS: Final = Path(".local/state/sandherd/uids")
"""The directory of reservations, below the user's home directory. All spawners of a user share it and the range."""
_LIBC: Final = ctypes.CDLL(None, use_errno=True)
_NEW_USER: Final = 0x10000000
_AMBIENT, _RAISE = 47, 2
"""Constants of prctl(2)."""
_CAPABILITIES_3: Final = 0x20080522
_CAPABILITIES: Final = (0, 1, 3, 5, 6, 7, 19, 21)
"""CAP_CHOWN, DAC_OVERRIDE, FOWNER, KILL, SETGID, SETUID, SYS_PTRACE and SYS_ADMIN, valid in this namespace only."""
_MAP_TIMEOUT_SECONDS: Final = 20.0
"""The timeout of newuidmap(1) and newgidmap(1)."""


@dataclass(frozen=True)
class SubordinateIds:
    """The result of `enter`: the host uids for sandboxes, or the reason why no subordinate ids are used."""

    users: SandboxUsers | None = None
    reason: str = "the spawner's program did not set them up"
    joined: bool = False
    """Whether this process has joined the namespace of running sandboxes with such uids."""


_current = SubordinateIds()


def current() -> SubordinateIds:
    """The result of `enter` for this process."""
    return _current


def enter(layout: Layout) -> None:
    """Move this process into the namespace, if its user has subordinate ids. Does nothing for root.

    The process must have only one thread.
    """
    global _current  # noqa: PLW0603  # one per process, like the uid
    if os.geteuid() == 0:
        return
    try:
        user = SubordinateUser.current()
        joined_ids = _join_running(layout, user)
        ids = joined_ids or _join_new(user)
        _inherit_capabilities()
    except NoSubordinateError as error:
        _current = SubordinateIds(reason=str(error))
        return
    users = SandboxUsers(ids.start, len(ids), user.home / RESERVATIONS, subordinate_names=user.names)
    _current = SubordinateIds(users, "", joined=joined_ids is not None)


def _join_running(layout: Layout, user: SubordinateUser) -> range | None:
    """Join the namespace of the sandboxes that still run. Returns the uids for sandboxes; None if no sandbox runs.

    Raises `NoSubordinateError` if running sandboxes have no own uid. They are managed from the current namespace, and
    the owner of their files must not change.
    """
    running = list(_running_shims(layout))
    for shim_process in (process for directory, process in running if directory.user is not None):
        if (ids := _join_namespace_of(shim_process, user)) is not None:
            return ids
    if any(process.alive() for _, process in running):
        raise NoSubordinateError(
            "sandboxes that were started without subordinate uids still run; restart the spawner after their end to "
            "use subordinate uids"
        )
    return None


def _join_namespace_of(shim_process: ProcessId, user: SubordinateUser) -> range | None:
    """Join this shim's namespace. Returns the uids for sandboxes; None if no spawner created it, or the shim has ended.

    Raises `NoSubordinateError`.
    """
    try:
        namespace = os.open(f"/proc/{shim_process.pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        ids = sandbox_uids_of(Path(f"/proc/{shim_process.pid}/uid_map").read_text(), user.uid)
        if ids is not None and shim_process.alive():
            _join(namespace)
            return ids
    except OSError:
        pass  # the shim has just ended
    finally:
        os.close(namespace)
    return None


def _running_shims(layout: Layout) -> Iterator[tuple[SandboxDirectory, ProcessId]]:
    """Each sandbox with a running shim, and that shim."""
    for directory in layout.directories():
        for run in directory.runs():
            claim = shim.read_claim(run)
            if claim and claim.alive():
                yield directory, claim


def _join_new(user: SubordinateUser) -> range:
    ranges = find_ranges(user)
    with _child_in_new_namespace() as holder:
        _map("newuidmap", holder, ranges.uid_map(user))
        _map("newgidmap", holder, ranges.gid_map(user))
        namespace = os.open(f"/proc/{holder}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
        try:
            _join(namespace)
        finally:
            os.close(namespace)
    return ranges.sandboxes


@contextmanager
def _child_in_new_namespace() -> Iterator[int]:
    """The pid of a child in a new user namespace without mappings. Our own namespace does not change."""
    wait_read, wait_write = os.pipe()
    result_read, result_write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(wait_write)  # otherwise the child would never see the end of the pipe
        failed = ctypes.get_errno() if _LIBC.unshare(_NEW_USER) != 0 else 0
        os.write(result_write, bytes([failed]))
        os.read(wait_read, 1)
        os._exit(0)
    try:
        if (failed := os.read(result_read, 1)[0]) != 0:
            raise NoSubordinateError(f"can't create a user namespace: {os.strerror(failed)}")
        yield child
    finally:
        for descriptor in (wait_read, wait_write, result_read, result_write):
            os.close(descriptor)
        os.waitpid(child, 0)


def _map(name: str, process: int, numbers: list[int]) -> None:
    program = shutil.which(name)
    if program is None:
        raise NoSubordinateError(f"{name} is not installed (package uidmap or shadow-utils)")
    try:
        argv = [program, str(process), *map(str, numbers)]
        completed = subprocess.run(
            argv, capture_output=True, text=True, errors="replace", timeout=_MAP_TIMEOUT_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NoSubordinateError(f"{name}: {error}") from error
    if completed.returncode != 0:
        message = (completed.stderr.strip().splitlines() or [f"exit status {completed.returncode}"])[-1]
        raise NoSubordinateError(f"{message[:300]}" if message.startswith(name) else f"{name}: {message[:300]}")


def _join(namespace: int) -> None:
    if _LIBC.setns(namespace, _NEW_USER) != 0:
        raise NoSubordinateError(f"can't join the user namespace: {os.strerror(ctypes.get_errno())}")


def _inherit_capabilities() -> None:
    """Limit this process to the needed capabilities, and pass them on to the programs that it starts.

    `launcher`, `nsenter_child` and the network forwarder drop them when they change their uid.
    """
    bits = sum(1 << number for number in _CAPABILITIES)
    header, sets = (ctypes.c_uint32 * 2)(_CAPABILITIES_3, 0), (ctypes.c_uint32 * 6)(bits, bits, bits, 0, 0, 0)
    if _LIBC.capset(ctypes.byref(header), ctypes.byref(sets)) != 0:
        raise NoSubordinateError(f"no capabilities in the user namespace: {os.strerror(ctypes.get_errno())}")
    for number in _CAPABILITIES:
        if _LIBC.prctl(_AMBIENT, _RAISE, number, 0, 0) != 0:
            raise NoSubordinateError(f"no ambient capabilities: {os.strerror(ctypes.get_errno())}")
