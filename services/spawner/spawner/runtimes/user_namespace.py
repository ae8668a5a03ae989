"""The user namespace of an ordinary user's spawner, in which it may give each sandbox a subordinate uid of its user.

`enter` is called once, before there is a second thread. The kernel lets nobody make a user namespace anew or manage the
processes of one from another, so a spawner that is started again joins that of the sandboxes that still run: each has a
shim in it. No process is needed that holds it.
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

from spawner.runtimes import shim
from spawner.runtimes.layout import Layout, Place
from spawner.runtimes.processes import ProcessId
from spawner.runtimes.sandbox_users import SandboxUsers
from spawner.runtimes.subordinate_ids import NoSubordinateError, User, find_ranges, mapped

RESERVATIONS: Final = Path(".local/state/sandherd/uids")
"""Below the user's home directory: all spawners of a user share it, as they share the range."""
_LIBC: Final = ctypes.CDLL(None, use_errno=True)
_NEW_USER: Final = 0x10000000
_AMBIENT, _RAISE = 47, 2
"""Of prctl(2)."""
_CAPABILITIES_3: Final = 0x20080522
_RIGHTS: Final = (0, 1, 3, 5, 6, 7, 19, 21)
"""CAP_CHOWN, DAC_OVERRIDE, FOWNER, KILL, SETGID, SETUID, SYS_PTRACE and SYS_ADMIN: over subordinate ids alone."""
_SECONDS: Final = 20.0


@dataclass(frozen=True)
class Subordinate:
    """The result of `enter`: the host uids for sandboxes, or why there are none."""

    users: SandboxUsers | None = None
    reason: str = "the spawner's program did not look for them"
    joined: bool = False
    """Whether sandboxes ran already that have such uids."""


_current = Subordinate()


def current() -> Subordinate:
    """The result of `enter` for this process."""
    return _current


def enter(layout: Layout) -> None:
    """Move this process into the namespace, where its user has subordinate ids; root's stays where it is.

    The process must have one thread.
    """
    global _current  # noqa: PLW0603  # as with the uid, there is one for each process
    if os.geteuid() == 0:
        return
    try:
        user = User.ourselves()
        living = _join_living(layout, user)
        ids = living or _join_new(user)
        _take_along()
    except NoSubordinateError as error:
        _current = Subordinate(reason=str(error))
        return
    users = SandboxUsers(ids.start, len(ids), user.home / RESERVATIONS, of_user=user.names)
    _current = Subordinate(users, "", joined=living is not None)


def _join_living(layout: Layout, user: User) -> range | None:
    """Join the namespace of the sandboxes that still run; None: none runs. Raises `NoSubordinateError`.

    Those without a uid of their own are managed from where this process is: it must not give their files away.
    """
    living = list(_living(layout))
    for shim_process in (one for place, one in living if place.user is not None):
        if (ids := _join_that_of(shim_process, user)) is not None:
            return ids
    if any(one.alive() for _, one in living):
        raise NoSubordinateError(
            "sandboxes that were started without them still run; a spawner started after their end uses them"
        )
    return None


def _join_that_of(shim_process: ProcessId, user: User) -> range | None:
    """Join this one's namespace; None: it has just ended, or is in none of ours. Raises `NoSubordinateError`."""
    try:
        namespace = os.open(f"/proc/{shim_process.pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        ids = mapped(Path(f"/proc/{shim_process.pid}/uid_map").read_text(), user.uid)
        if ids is not None and shim_process.alive():
            _join(namespace)
            return ids
    except OSError:
        pass  # it has just ended
    finally:
        os.close(namespace)
    return None


def _living(layout: Layout) -> Iterator[tuple[Place, ProcessId]]:
    for place in layout.places():
        for run in place.runs():
            claim = shim.read_claim(run)
            if claim and claim.alive():
                yield place, claim


def _join_new(user: User) -> range:
    ranges = find_ranges(user)
    with _namespace() as holder:
        _map("newuidmap", holder, ranges.uid_map(user))
        _map("newgidmap", holder, ranges.gid_map(user))
        namespace = os.open(f"/proc/{holder}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
        try:
            _join(namespace)
        finally:
            os.close(namespace)
    return ranges.sandboxes


@contextmanager
def _namespace() -> Iterator[int]:
    """A child in a user namespace that nothing is mapped in yet: if that can't be done, this process is as it was."""
    holds, released = os.pipe()
    answer, answers = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(released)  # else it would wait for itself
        failed = ctypes.get_errno() if _LIBC.unshare(_NEW_USER) != 0 else 0
        os.write(answers, bytes([failed]))
        os.read(holds, 1)
        os._exit(0)
    try:
        if (failed := os.read(answer, 1)[0]) != 0:
            raise NoSubordinateError(f"no user namespace can be made: {os.strerror(failed)}")
        yield child
    finally:
        for descriptor in (holds, released, answer, answers):
            os.close(descriptor)
        os.waitpid(child, 0)


def _map(name: str, process: int, words: list[int]) -> None:
    program = shutil.which(name)
    if program is None:
        raise NoSubordinateError(f"{name} is not installed (package uidmap or shadow-utils)")
    try:
        line = [program, str(process), *map(str, words)]
        done = subprocess.run(line, capture_output=True, text=True, errors="replace", timeout=_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NoSubordinateError(f"{name}: {error}") from error
    if done.returncode != 0:
        told = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        raise NoSubordinateError(f"{told[:300]}" if told.startswith(name) else f"{name}: {told[:300]}")


def _join(namespace: int) -> None:
    if _LIBC.setns(namespace, _NEW_USER) != 0:
        raise NoSubordinateError(f"the user namespace can't be entered: {os.strerror(ctypes.get_errno())}")


def _take_along() -> None:
    """Have the capabilities that are needed, and no others, and let the programs that are started from here have them.

    `launcher`, `entrant` and the network forwarder give them up with the user's uid.
    """
    chosen = sum(1 << number for number in _RIGHTS)
    header, sets = (ctypes.c_uint32 * 2)(_CAPABILITIES_3, 0), (ctypes.c_uint32 * 6)(chosen, chosen, chosen, 0, 0, 0)
    if _LIBC.capset(ctypes.byref(header), ctypes.byref(sets)) != 0:
        raise NoSubordinateError(f"no capabilities in the user namespace: {os.strerror(ctypes.get_errno())}")
    for number in _RIGHTS:
        if _LIBC.prctl(_AMBIENT, _RAISE, number, 0, 0) != 0:
            raise NoSubordinateError(f"no ambient capabilities: {os.strerror(ctypes.get_errno())}")
