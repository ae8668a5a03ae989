"""A separate program that has loaded the modules of workers, and forks processes into sandboxes (see `fork_server`).

    python -P fork_program.py <descriptor> [-m <module> | -c <code>]

For each connection that it receives on the descriptor it forks a child, which reads the request and handles it. This
process itself reads no request and enters no sandbox, so that all children begin in the same state, without data of
another sandbox. It ends when the spawner closes the descriptor. A child has one of these roles:

- `worker`: it enters the sandbox's control groups, waits until the stub (see `shim`) runs in the sandbox, joins the
  stub's namespaces, and forks a holder, which the first process of the sandbox adopts. The holder forks the worker, and
  reports the worker's end;
- `command`: it does what `nsenter_child` does as a program;
- `forwarder`: it enters the sandbox's control groups, and becomes the sandbox's network forwarder, on the host.
"""

import atexit
import gc
import importlib
import json
import os
import random
import resource
import signal
import socket
import struct
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

if TYPE_CHECKING or __package__:
    from spawner.runtimes import nsenter_child
else:  # run as a program: the spawner's package would load what no worker needs
    sys.path.insert(0, str(Path(__file__).parent))
    nsenter_child = importlib.import_module("nsenter_child")
    del sys.path[0]  # its modules have common names

_REQUEST_PART: Final = 65536
"""The number of bytes of a request that are read at once."""
_MAX_DESCRIPTORS: Final = 3
"""The maximum number of descriptors of a request."""
_SEED_BYTES: Final = 48
"""The number of random bytes that are added to OpenSSL's state."""
_BEGIN_BYTES: Final = 64
"""More than the length of the line `begin`, which a shim sends to its forwarder."""
_CREDENTIALS: Final = struct.Struct("3i")
"""`struct ucred` of unix(7): process id, user id, group id."""


def main() -> int:
    """Load the worker, then fork a child for each connection. Returns when the spawner has closed the descriptor."""
    control = socket.socket(fileno=int(sys.argv[1]))
    control.set_inheritable(False)
    run = _load(*sys.argv[2:4])
    gc.collect()
    gc.freeze()  # the collector would write into pages that are shared with all children
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        received, descriptors = _receive(control, 1)
        if not received:
            return 0
        if _fork() == 0:
            control.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            _serve(socket.socket(fileno=descriptors[0]), run)
        for descriptor in descriptors:
            os.close(descriptor)


def _fork() -> int:
    """Call `os.fork`. Returns -1 if no process can be created; the connection is then closed without a reply."""
    try:
        return os.fork()
    except OSError:
        return -1


def _load(option: str, text: str) -> Callable[[list[str]], int | None]:
    """The function that runs a worker with its arguments. A module is loaded now, with all modules that it imports."""
    if option == "-c":
        return lambda arguments: _run_code(text, arguments)
    module = importlib.import_module(text)
    module.preload()
    return lambda arguments: _run_module(module, arguments)


def _run_code(text: str, arguments: list[str]) -> int:
    sys.argv = ["-c", *arguments]
    exec(compile(text, "<string>", "exec"), {"__name__": "__main__", "__builtins__": __builtins__})  # noqa: S102  # as `python -c`
    return 0


def _run_module(module: Any, arguments: list[str]) -> int | None:
    sys.argv = [str(module.__file__), *arguments]
    code: int | None = module.main()
    return code


def _serve(connection: socket.socket, run: Callable[[list[str]], int | None]) -> NoReturn:
    """Handle the request of a connection, in a child that has just been forked."""
    try:
        request, descriptors = _read(connection)
        connection.sendall(_own_stat())
        if request["role"] == "command":
            connection.close()
            _run_command(request, *descriptors)
        elif request["role"] == "forwarder":
            connection.close()
            _run_forwarder(request, descriptors[0], run)
        else:
            connection.close()
            _start_worker(request, descriptors[0], run)
    except (OSError, ValueError):
        traceback.print_exc()
    os._exit(1)


def _own_stat() -> bytes:
    """The line of this process in `/proc`, with its start time, because a later process may have the same id."""
    with open("/proc/self/stat", "rb", buffering=0) as stat:  # noqa: PTH123  # half the time of pathlib
        return stat.read()


def _receive(connection: socket.socket, size: int) -> tuple[bytes, list[int]]:
    """Read up to `size` bytes, and the descriptors sent with them, which programs do not inherit."""
    text, descriptors, _, _ = socket.recv_fds(connection, size, _MAX_DESCRIPTORS)
    for descriptor in descriptors:
        os.set_inheritable(descriptor, False)  # `recv_fds` ignores MSG_CMSG_CLOEXEC
    return text, descriptors


def _read(connection: socket.socket) -> tuple[dict[str, Any], list[int]]:
    text, descriptors = _receive(connection, _REQUEST_PART)
    while part := connection.recv(_REQUEST_PART):
        text += part
    request: dict[str, Any] = json.loads(text)
    return request, descriptors


def _run_command(request: dict[str, Any], out: int, err: int, report: int) -> NoReturn:
    os.setsid()
    _set_standard(out, err)
    code = nsenter_child.serve(request, report)
    os._exit(code)


def _run_forwarder(request: dict[str, Any], shim: int, run: Callable[[list[str]], int | None]) -> None:
    """Run the network forwarder once the shim has claimed its run. Do nothing if another shim has claimed the run."""
    os.setsid()
    if not os.read(shim, _BEGIN_BYTES):  # the shim has ended without claiming the run
        return
    nsenter_child.enter_groups(request["groups"])
    log = os.open(request["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    _set_standard(log, log)
    renew_random_states()
    _end(run, [request["folder"], str(shim)])


def _start_worker(request: dict[str, Any], stub: int, run: Callable[[list[str]], int | None]) -> None:
    """Join the stub's namespaces, and start a holder there, which forks the worker."""
    os.setsid()
    channel = socket.socket(fileno=stub)
    nsenter_child.enter_groups(request["groups"])
    pid = _wait_for_stub(channel)
    if pid is None:
        return
    log = os.open(request["log"], os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
    try:
        nsenter_child.enter_namespaces(pid, None, request["user"])
        nsenter_child.hide()  # before this process has an id in the sandbox, by which the agent could trace it
        _enter_folder(request["folder"], request["inode"])
    except OSError as error:
        os.write(log, f"sandherd: the worker is started by exec, as it could not be forked: {error}\n".encode())
        return
    intermediate = os.fork()
    if intermediate == 0:
        # This process ends now, so that the first process of the pid namespace adopts the holder. The holder ends when
        # that process ends.
        if os.fork() == 0:
            _hold(request, channel, log, run)
        os._exit(0)
    os.waitpid(intermediate, 0)
    os._exit(0)


def _enter_folder(folder: str, inode: list[int]) -> None:
    """Change into the sandbox's folder. Raises `OSError` if the stub's id was reused, by another sandbox's process."""
    os.chdir(folder)
    entered = os.stat(".")  # noqa: PTH116  # as above
    if [entered.st_dev, entered.st_ino] != inode:
        raise OSError("its process id belongs to another sandbox")


def _wait_for_stub(channel: socket.socket) -> int | None:
    """Wait until the stub reports that it runs, and return its process id; None if it ended before.

    The kernel adds the id to the report (SCM_CREDENTIALS), so that the sandbox can't name another process.
    """
    text, ancillary, _, _ = channel.recvmsg(64, socket.CMSG_SPACE(_CREDENTIALS.size))
    if not text:
        return None
    return next(int(_CREDENTIALS.unpack(data)[0]) for _, kind, data in ancillary if kind == socket.SCM_CREDENTIALS)


def _hold(
    request: dict[str, Any], channel: socket.socket, log: int, run: Callable[[list[str]], int | None]
) -> NoReturn:
    """Fork the worker, wait for it, and report its end. The stub is not the worker's parent, so it can't do that."""
    try:
        os.setsid()
        nsenter_child.hide()
        nsenter_child.drop_capabilities()
        nsenter_child.install_filter(request["filter"])
        holder = os.getpid()
        worker = os.fork()
        if worker == 0:
            nsenter_child.end_with({holder})
            _become_worker(request, channel, log)
            _end(run, request["arguments"])
        _set_standard(null := os.open(os.devnull, os.O_RDWR), null)
        os.closerange(3, channel.fileno())
        os.closerange(channel.fileno() + 1, os.sysconf("SC_OPEN_MAX"))
        code = nsenter_child.exit_status(os.waitpid(worker, 0)[1])
        with suppress(OSError):
            channel.sendall(f"ended {code}\n".encode())
    finally:
        os._exit(0)


def _become_worker(request: dict[str, Any], channel: socket.socket, log: int) -> None:
    """Give this process the descriptors, limits, signal mask and variables of a worker that is started by exec."""
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    _set_standard(log, log)
    for name, limit in request["limits"].items():
        resource.setrlimit(getattr(resource, name), (limit, limit))
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    os.environ.clear()
    os.environ.update(request["variables"])
    renew_random_states()
    sys.path[:] = [entry for entry in sys.path if entry.endswith(".zip") or os.path.isdir(entry)]  # noqa: PTH112  # as `site`
    channel.sendall(f"started {os.getpid()}\n".encode())
    channel.close()
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    nsenter_child.show()  # as after an exec; the worker hides itself


def renew_random_states() -> None:
    """Seed the random number generators that the fork server may have seeded, so that workers get different numbers.

    OpenSSL and `tempfile` seed their generators again in a process with another id. But processes of two sandboxes may
    have the same id, each in its own pid namespace.
    """
    random.seed()
    if openssl := sys.modules.get("_ssl"):
        openssl.RAND_add(os.urandom(_SEED_BYTES), _SEED_BYTES)
    if tempfile := sys.modules.get("tempfile"):
        tempfile._name_sequence = None  # type: ignore[attr-defined]  # noqa: SLF001  # it has no public function


def _set_standard(out: int, err: int) -> None:
    """Use these descriptors as the standard output and the standard error, and close the originals."""
    os.dup2(out, 1)
    os.dup2(err, 2)
    for descriptor in {out, err} - {1, 2}:
        os.close(descriptor)


def _end(run: Callable[[list[str]], int | None], arguments: list[str]) -> NoReturn:
    """Run the worker, and end as the interpreter does, but without deleting all objects, which takes long."""
    code: Any = 1
    try:
        code = run(arguments)
    except SystemExit as end:
        code = end.code
    except BaseException:  # noqa: BLE001  # as the interpreter does
        traceback.print_exc()
    if isinstance(code, str):
        sys.stderr.write(f"{code}\n")
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]  # noqa: SLF001  # waits for threads, as the interpreter does
    atexit._run_exitfuncs()  # noqa: SLF001  # as above
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit((code or 0) & 0xFF)


if __name__ == "__main__":
    sys.exit(main())
