"""Services as forks of a supervisor that has their modules; `server.py` runs this in place of a real supervisor.

The services are children of the supervisor, as real ones are, with their own process ids.
"""

import asyncio
import ctypes
import os
import runpy
import signal
import struct
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import IO, Any, Final

from sandherd.stack import child_process, supervisor_process
from sandherd.stack.child_process import ChildCommand

MAINS: Final = {
    f"sandherd-{name.replace('_', '-')}": f"{name}.main"
    for name in ("spawner", "event_ingest", "monitor", "message_relay", "gateway")
} | {"sandherd-spawner-end": "spawner.sandbox_shutdown"}
_PR_SET_PDEATHSIG: Final = 1
_PR_SET_MM: Final = 35
_PR_SET_MM_MAP: Final = 14
_SHOWN: Final[list[Any]] = []
_start_cold: Final = child_process._start


def replace_supervisor(program: Path) -> None:
    """Make this process and its forks start this program in place of Python, and services as forks."""
    supervisor_process.PROGRAM[0] = str(program)
    setattr(child_process, "_start", _start_forked)  # noqa: B010  # mypy lets no function be assigned


def preload() -> None:
    """Load what a supervisor and its services use."""
    for name in ("sandherd.stack.supervisor", *MAINS.values()):
        import_module(name)


class Fork(subprocess.Popen[bytes]):
    """A fork of this process, with the interface of a process as far as `Child` uses it."""

    def __init__(self, pid: int, arguments: list[str]) -> None:  # not `Popen.__init__`, which starts a program
        self.pid, self.args, self.returncode = pid, arguments, None
        self.stdin = self.stdout = self.stderr = None

    def poll(self) -> int | None:
        """The exit status, or None while it runs."""
        if self.returncode is None:
            found, status = os.waitpid(self.pid, os.WNOHANG)
            if found:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def send_signal(self, sig: int) -> None:
        """Send a signal, if it runs."""
        if self.poll() is None:
            os.kill(self.pid, sig)

    def __del__(self, _warn: Any = None) -> None:
        """Do nothing: there is no program to wait for."""


def supervise(arguments: list[str]) -> None:
    """Become the supervisor, in a fork of the server; does not return."""
    from sandherd.stack import supervisor

    end(lambda: supervisor.main(arguments))


def run_program(arguments: list[str]) -> None:
    """Become `python FILE ...` or `python -m MODULE ...`, in a fork of the server; does not return."""
    sys.path[:0] = [folder for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep) if folder]
    is_module = arguments[0] == "-m"
    sys.argv = arguments[is_module:]

    def run() -> None:
        if is_module:
            runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(sys.argv[0], run_name="__main__")

    end(run)


def _start_forked(command: ChildCommand, log: IO[bytes]) -> "subprocess.Popen[bytes]":
    program = Path(command.arguments[0])
    if program.name not in MAINS or not program.exists():
        return _start_cold(command, log)
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return Fork(pid, list(command.arguments))
    try:
        _become(command, log, parent)
        end(import_module(MAINS[program.name]).main)
    finally:
        os._exit(1)


def _become(command: ChildCommand, log: IO[bytes], parent: int) -> None:
    """Become like a new program: without the event loop, the files and the signal handlers of the supervisor."""
    os.setpgid(0, 0)
    if command.linked:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
    asyncio._set_running_loop(None)
    asyncio.set_event_loop(None)
    signal.set_wakeup_fd(-1)
    for caught in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        if callable(signal.getsignal(caught)):
            signal.signal(caught, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    with open(os.devnull, "rb") as nothing:  # noqa: PTH123  # no more of the supervisor's than needed
        os.dup2(nothing.fileno(), 0)
    for number in (1, 2):
        os.dup2(log.fileno(), number)
    os.closerange(3, 4096)
    os.umask(command.umask)
    if command.environment is not None:
        os.environ.clear()
        os.environ.update(command.environment)
    sys.argv = list(command.arguments)
    show_as([sys.executable, *sys.argv])


def show_as(arguments: list[str]) -> None:
    """Make `/proc` show this command line, and this process's variables (prctl(2), `PR_SET_MM_MAP`).

    Otherwise both are those of the server, also for code that reads the settings of a running stack.
    """
    line = b"".join(os.fsencode(word) + b"\0" for word in arguments)
    variables = b"".join(name + b"=" + value + b"\0" for name, value in os.environb.items())
    _SHOWN.append(ctypes.create_string_buffer(line + variables))
    first = ctypes.addressof(_SHOWN[-1])
    behind, end = first + len(line), first + len(line) + len(variables)
    fields = ["", "", "", *Path("/proc/self/stat").read_text().rpartition(")")[2].split()]
    libc = ctypes.CDLL(None)
    libc.sbrk.restype = ctypes.c_void_p
    code, data, stack = map(int, fields[26:28]), map(int, fields[45:48]), int(fields[28])
    places = struct.pack("=11QQIi", *code, *data, libc.sbrk(0), stack, first, behind, behind, end, 0, 0, -1)
    libc.prctl(_PR_SET_MM, _PR_SET_MM_MAP, places, ctypes.c_ulong(len(places)), ctypes.c_ulong(0))


def end(main: Callable[[], Any]) -> None:
    """Run a program's main function, and end the process as Python does."""
    status: Any = 1
    try:
        status = main()
    except SystemExit as ended:
        status = ended.code
    except BaseException:  # noqa: BLE001  # the process ends here
        sys.excepthook(*sys.exc_info())
    try:
        sys.stdout.flush()
    except (OSError, ValueError, AttributeError):
        status = 120
    finally:
        os._exit(status if isinstance(status, int) else 1 if status else 0)
