"""A separate program that enters a running sandbox, runs one command there, and reports how it ended.

    python -I -S nsenter_child.py <descriptor>   < request

The request is JSON on standard input (see `nsenter`), because variables may contain secrets. The result is written as
JSON to the descriptor. The program enters the sandbox's control groups and namespaces, and assumes the sandbox's uid,
limits and system call filter, with a new session keyring. The command is the child of a second process in the sandbox,
the holder, which is the subreaper of all orphans of the command. So all processes of the command are descendants of one
process, and can be killed. The program imports only the standard library, and no module after it has entered the
sandbox, where the module's file may not exist.
"""

import ctypes
import errno
import fcntl
import json
import os
import resource
import signal
import sys
import warnings  # noqa: F401  # `os.execvpe` would load this module, but its file may not exist in the sandbox
from typing import Any, Final

_LIBC: Final = ctypes.CDLL(None, use_errno=True)
_NAMESPACES: Final = ("mnt", "pid", "ipc", "uts", "cgroup", "net")
_OWNER: Final = 0xB701
"""ioctl NS_GET_USERNS, which opens the user namespace that owns a namespace (ioctl_ns(2))."""
_DEATHSIG, _DUMPABLE, _SECCOMP, _BOUND_DROP, _SUBREAPER, _NO_NEW_PRIVS = 1, 4, 22, 24, 36, 38
"""Options of prctl(2)."""
_MODE_FILTER: Final = 2
"""SECCOMP_MODE_FILTER."""
_KEYCTL: Final = {"x86_64": 250, "aarch64": 219}
_JOIN_SESSION_KEYRING: Final = 1
_LANDLOCK_CREATE, _LANDLOCK_RESTRICT, _LANDLOCK_VERSION = 444, 446, 1
_LANDLOCK_SCOPES, _SCOPE_SOCKETS, _SCOPE_SIGNALS = 6, 1, 2
"""The first Landlock ABI version with scopes, and the scopes (linux/landlock.h)."""
_CAPABILITIES_3: Final = 0x20080522
_NOT_FOUND, _NOT_RUN, _SIGNALLED = 127, 126, 128
"""Exit statuses as used by shells."""


def main() -> int:
    """Enter the sandbox, run the command, and report how it ended."""
    report_pipe = int(sys.argv[1])
    os.set_inheritable(report_pipe, False)
    try:
        request = json.load(sys.stdin.buffer)
    except ValueError as error:
        _report(report_pipe, error=str(error))
        return 1
    return serve(request, report_pipe)


def serve(request: dict[str, Any], report_pipe: int) -> int:
    """Enter the sandbox, run the command, and report how it ended. Returns the exit status of this process."""
    try:
        _enter(request)
        code = _run(request)
    except (OSError, ValueError) as error:
        _report(report_pipe, error=str(error))
        return 1
    _report(report_pipe, code=code)
    return 0


def _report(report_pipe: int, **fields: Any) -> None:
    os.write(report_pipe, json.dumps(fields).encode())


def enter_groups(groups: list[str]) -> None:
    """Move this process into these control groups. Raises `OSError`."""
    for group in groups:
        with open(f"{group}/cgroup.procs", "w") as members:  # noqa: PTH123  # avoids further imports
            members.write("0")


def enter_namespaces(pid: int, started: int | None, user: int | None) -> None:
    """Enter the namespaces of a process, with a new session keyring. Raises `OSError`.

    `started`: the process's start time, if another process may have its id meanwhile. `user`: the sandbox's host uid.
    """
    _join_session_keyring()
    _join(pid, started, user)


def _enter(request: dict[str, Any]) -> None:
    enter_groups(request["groups"])
    if request["target"] is not None:
        pid, started = request["target"]
        enter_namespaces(pid, started, request["user"])
    os.chdir(request["folder"])
    null = os.open("/dev/null", os.O_RDONLY)
    os.dup2(null, 0)
    for name, (soft, hard) in request["limits"].items():
        resource.setrlimit(getattr(resource, name), (soft, hard))


def _join_session_keyring() -> None:
    """Join a new session keyring, so that the sandbox can't access the keys of our session. Raises `OSError`."""
    number = _KEYCTL.get(os.uname().machine)
    if number is None or _LIBC.syscall(number, _JOIN_SESSION_KEYRING, None) >= 0:
        return
    if ctypes.get_errno() != errno.ENOSYS:  # a kernel without keyrings
        raise OSError(ctypes.get_errno(), "no new session keyring: " + os.strerror(ctypes.get_errno()))


def _join(pid: int, started: int | None, user: int | None) -> None:
    """Enter the namespaces of a process, under the sandbox's uid, and first the user namespace that owns the others."""
    user_namespace = os.open(f"/proc/{pid}/ns/user", os.O_RDONLY)
    others = [os.open(f"/proc/{pid}/ns/{name}", os.O_RDONLY) for name in _NAMESPACES if _differs(pid, name)]
    with open(f"/proc/{pid}/stat", "rb") as stat:  # noqa: PTH123  # as above
        if started is not None and int(stat.read().rpartition(b")")[2].split()[19]) != started:
            raise ProcessLookupError(0, "it has just ended")
    if not others:
        raise ProcessLookupError(0, "it is not in a sandbox")
    owner = fcntl.ioctl(others[0], _OWNER)
    if user is not None:
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
    for namespace in [owner, *others]:
        _set_namespace(namespace)
    if os.fstat(user_namespace).st_ino != os.fstat(owner).st_ino:
        _set_namespace(user_namespace)
    for namespace in [user_namespace, owner, *others]:
        os.close(namespace)


def _differs(pid: int, name: str) -> bool:
    """Whether the process is in another namespace of this kind than we. A shared one need not and can't be entered."""
    return os.stat(f"/proc/{pid}/ns/{name}").st_ino != os.stat(f"/proc/self/ns/{name}").st_ino  # noqa: PTH116  # as above


def _set_namespace(descriptor: int) -> None:
    if _LIBC.setns(descriptor, 0) != 0:
        raise OSError(ctypes.get_errno(), "its namespaces can't be entered: " + os.strerror(ctypes.get_errno()))


def _run(request: dict[str, Any]) -> int:
    """Run the command, and return its exit status as a shell shows it. This process ends when its parent ends."""
    _prctl(_DEATHSIG, signal.SIGKILL)
    # The agent must not open our files of the host through /proc. A change of our uid may have reset this.
    hide()
    entrant = os.getpid()
    holder = os.fork()
    if holder == 0:
        _run_command(request, entrant)
    return exit_status(os.waitpid(holder, 0)[1])


def _run_command(request: dict[str, Any], entrant: int) -> None:
    """Run the command, and be the subreaper of its orphans while it runs."""
    end_with({0, entrant})  # in another pid namespace, getppid(2) returns 0 for a parent outside of it
    _prctl(_SUBREAPER, 1)
    if request["target"] is not None:
        drop_capabilities()
    holder = os.getpid()
    command = os.fork()
    if command == 0:
        end_with({holder})
        _exec_command(request)
    while True:
        child, status = os.waitpid(-1, 0)
        if child == command:
            os._exit(exit_status(status))


def hide() -> None:
    """Prevent processes of the same uid from tracing this one and opening its files in `/proc`. Raises `OSError`."""
    _prctl(_DUMPABLE, 0)


def show() -> None:
    """Undo `hide`, as an exec does. Raises `OSError`."""
    _prctl(_DUMPABLE, 1)


def end_with(parents: set[int]) -> None:
    """Let this process end when its parent ends. End immediately if the parent is none of `parents` any more."""
    _prctl(_DEATHSIG, signal.SIGKILL)
    if os.getppid() not in parents:
        os._exit(_NOT_RUN)


def _exec_command(request: dict[str, Any]) -> None:
    os.setsid()
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    argv = request["argv"]
    if request["target"] is not None:
        _restrict_scope()
        install_filter(request["filter"])
    try:
        os.execvpe(argv[0], argv, request["environment"])  # noqa: S606  # as it was requested, without a shell
    except (OSError, ValueError) as error:
        os.write(2, f"{argv[0]}: {error}\n".encode())
        os._exit(_NOT_FOUND if isinstance(error, FileNotFoundError) else _NOT_RUN)


def drop_capabilities() -> None:
    """Drop all capabilities, and prevent this process from getting any, as bubblewrap does."""
    for capability in range(64):
        _LIBC.prctl(_BOUND_DROP, capability, 0, 0, 0)
    _prctl(_NO_NEW_PRIVS, 1)
    header, none = (ctypes.c_uint32 * 2)(_CAPABILITIES_3, 0), (ctypes.c_uint32 * 6)()
    if _LIBC.capset(ctypes.byref(header), ctypes.byref(none)) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _restrict_scope() -> None:
    """Deny access to processes except descendants: signals, tracing and abstract sockets (Landlock, if supported)."""
    if _LIBC.syscall(_LANDLOCK_CREATE, None, 0, _LANDLOCK_VERSION) < _LANDLOCK_SCOPES:
        return
    rules = (ctypes.c_uint64 * 3)(0, 0, _SCOPE_SOCKETS | _SCOPE_SIGNALS)
    descriptor = _LIBC.syscall(_LANDLOCK_CREATE, ctypes.byref(rules), ctypes.sizeof(rules), 0)
    if descriptor < 0 or _LIBC.syscall(_LANDLOCK_RESTRICT, descriptor, 0) != 0:
        os._exit(_NOT_RUN)
    os.close(descriptor)


def install_filter(encoded: str) -> None:
    """Install the sandbox's system call filter, if it has one. Ends the process if that fails."""
    if not encoded:
        return
    code = bytes.fromhex(encoded)
    steps = ctypes.create_string_buffer(code, len(code))
    program = _Program(len(code) // 8, ctypes.addressof(steps))
    if _LIBC.prctl(_SECCOMP, _MODE_FILTER, ctypes.byref(program), 0, 0) != 0:
        os._exit(_NOT_RUN)


class _Program(ctypes.Structure):
    """`struct sock_fprog` of linux/filter.h."""

    _fields_ = (("length", ctypes.c_ushort), ("steps", ctypes.c_void_p))


def _prctl(option: int, value: int) -> None:
    if _LIBC.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def exit_status(status: int) -> int:
    """The exit status of a process as a shell shows it, from the status of waitpid(2)."""
    code = os.waitstatus_to_exitcode(status)
    return _SIGNALLED - code if code < 0 else code


if __name__ == "__main__":
    sys.exit(main())
