"""Forks a program for each connection to SOCKET: `python driver_server.py SOCKET MODULE...`.

The modules are loaded once: for a driver, under the Python of its toolchain, the SDK of its kind, and for a worker all
that it uses. `MODULE:FUNCTION` also calls a function of the module. A connection brings the program's module,
arguments, environment and working directory, and the files that it has as standard input, output and, for drivers,
events pipe. The fork writes its process id to it, and the server the exit status. The server ends with its standard
input.
"""

import gc
import marshal
import os
import runpy
import select
import signal
import socket
import sys
import tempfile
import time
from contextlib import suppress
from importlib import import_module


def serve(listener: socket.socket) -> None:
    """Serve until standard input is closed; drivers that then run are killed."""
    poll = select.poll()
    poll.register(listener, select.POLLIN)
    poll.register(0, select.POLLIN)
    running: dict[int, tuple[socket.socket, int]] = {}
    while True:
        for descriptor, _ in poll.poll():
            if descriptor == 0:
                for _, pid in running.values():
                    os.kill(pid, signal.SIGKILL)
                return
            if descriptor == listener.fileno():
                line = listener.accept()[0]
                pid = _start(line)
                end = os.pidfd_open(pid)
                running[end] = line, pid
                poll.register(end, select.POLLIN)
                continue
            line, pid = running.pop(descriptor)
            poll.unregister(descriptor)
            os.close(descriptor)
            _, status = os.waitpid(pid, 0)
            with suppress(OSError):
                line.sendall(os.waitstatus_to_exitcode(status).to_bytes(4, "little", signed=True))
            line.close()


def _start(line: socket.socket) -> int:
    head, descriptors, _, _ = socket.recv_fds(line, 4, 3)
    size, wanted = int.from_bytes(head, "little"), b""
    while len(wanted) < size:
        wanted += line.recv(size - len(wanted))
    module, arguments, environment, folder = marshal.loads(wanted)
    pid = os.fork()
    if not pid:
        try:
            _become(line, [module, *arguments], environment, folder, descriptors)
        finally:
            os._exit(1)
    for descriptor in descriptors:
        os.close(descriptor)
    return pid


def _become(
    line: socket.socket, arguments: list[str], environment: dict[str, str], folder: str, descriptors: list[int]
) -> None:
    """Become the program, in its own session; does not return."""
    os.setsid()
    line.sendall(os.getpid().to_bytes(4, "little"))
    given, printed, *more = (os.dup(descriptor) for descriptor in descriptors)
    files = (given, printed, printed, *more)
    for number, descriptor in enumerate(files):
        os.dup2(descriptor, number)
    os.closerange(len(files), 1024)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(folder)
    # Python without a locale sets this for the programs that it starts.
    coerced = {name: os.environ[name] for name in ("LC_CTYPE",) if name in os.environ}
    os.environ.clear()
    os.environ.update(coerced | environment)
    tempfile.tempdir = None
    time.tzset()
    sys.argv = arguments
    status: object = 0
    try:
        runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
    except SystemExit as ended:
        status = ended.code
    except BaseException:  # noqa: BLE001  # the process ends here
        sys.excepthook(*sys.exc_info())
        status = 1
    sys.stdout.flush()
    os._exit(status if isinstance(status, int) else 1 if status else 0)


def main() -> None:
    """Load the modules, and serve."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    path, *modules = sys.argv[1:]
    gc.disable()
    for wanted in modules:
        name, _, function = wanted.partition(":")
        module = import_module(name)
        if function:
            getattr(module, function)()
    gc.freeze()
    gc.enable()
    # Descriptors below 4 are the program's.
    while (low := os.open(os.devnull, os.O_RDONLY)) < 4:
        continue
    os.close(low)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(path)
    listener.listen(16)
    os.write(1, b"r")
    serve(listener)


if __name__ == "__main__":
    main()
