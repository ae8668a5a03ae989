"""Forks a driver for each connection to SOCKET: `python driver_server.py SOCKET MODULE...`, under a toolchain's Python.

The modules, the SDK of the driver's kind among them, are loaded once. A connection brings the driver's module, its
environment and its working directory, and the files that it has as standard input, output and events pipe. The fork
writes its process id to it, and the server the exit status. The server ends with its standard input.
"""

import gc
import marshal
import os
import runpy
import select
import signal
import socket
import sys
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
    module, environment, folder = marshal.loads(wanted)
    pid = os.fork()
    if not pid:
        try:
            _become(line, module, environment, folder, descriptors)
        finally:
            os._exit(1)
    for descriptor in descriptors:
        os.close(descriptor)
    return pid


def _become(line: socket.socket, module: str, environment: dict[str, str], folder: str, descriptors: list[int]) -> None:
    """Be the driver, in a session of its own; does not return."""
    os.setsid()
    line.sendall(os.getpid().to_bytes(4, "little"))
    given, printed, events = (os.dup(descriptor) for descriptor in descriptors)
    for number, descriptor in ((0, given), (1, printed), (2, printed), (3, events)):
        os.dup2(descriptor, number)
    os.closerange(4, 1024)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(folder)
    # A start of Python without a locale sets this for the programs that it starts.
    coerced = {name: os.environ[name] for name in ("LC_CTYPE",) if name in os.environ}
    os.environ.clear()
    os.environ.update(coerced | environment)
    sys.argv = [module]
    status: object = 0
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
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
    for module in modules:
        import_module(module)
    gc.freeze()
    gc.enable()
    # Descriptors below 4 are those of a driver.
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
