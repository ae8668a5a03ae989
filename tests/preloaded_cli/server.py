"""Forks a command, a supervisor or another Python program for each connection to SOCKET (`python server.py SOCKET`).

It ends when its standard input does.

A command whose launcher has ended, as by SIGKILL, is killed. There is one thread, as forks of more may hang.
"""

import gc
import locale
import marshal
import os
import select
import signal
import socket
import sys
import time
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any, Final

SUPERVISOR: Final = ["-m", "sandherd.stack.supervisor"]
CAUGHT: Final = (
    signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCHLD,
)  # fmt: skip


def preload() -> None:
    """Load what commands use, as a command does."""
    from sandherd.lazy_imports import start_lean

    start_lean()
    from sandherd.cli import app

    app.build()
    for name in (
        "asyncio", "nats", "nats.js.api", "sandherd.bus.connection", "sandherd.client.herd", "sandherd.cli.exit_status",
        "sandherd.client.terminal_text", "sandherd.client.events.follower", "sandherd.client.events.terminal_output",
        "sandherd.client.commands", "sandherd.client.sandboxes.execution", "sandherd.client.sandboxes.transfer",
        "sandherd.client.tasks.preflight",
    ):  # fmt: skip
        import_module(name)
    from sandherd.contracts.requests import REQUESTS

    for request in REQUESTS.values():
        request.model_rebuild()
        request.Answer.model_rebuild()


class Server:
    """The listening socket, and the commands that run."""

    def __init__(self, path: str) -> None:
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(path)
        os.chmod(path, 0o666)  # noqa: PTH101  # a test may run the command as another user: it is this one that runs it
        self._listener.listen(128)
        self._poll = select.poll()
        self._poll.register(self._listener, select.POLLIN)
        self._poll.register(0, select.POLLIN)
        self._lines: dict[int, tuple[socket.socket, int]] = {}
        """The connection of each command, and the command's process id."""
        self._ends: dict[int, int] = {}
        """The connection of each command, by the descriptor that becomes readable at its end."""

    def serve(self) -> None:
        """Serve until the standard input is closed; end the commands that still run."""
        while True:
            for descriptor in self._ready():
                if descriptor == 0:
                    for _, pid in self._lines.values():
                        os.kill(pid, signal.SIGKILL)
                    return
                if descriptor == self._listener.fileno():
                    self._start(self._listener.accept()[0])
                elif descriptor in self._ends:
                    self._finish(descriptor)
                elif descriptor in self._lines:
                    self._poll.unregister(descriptor)
                    os.kill(self._lines[descriptor][1], signal.SIGKILL)

    def _ready(self) -> list[int]:
        """The readable connections. The listener is last: a new one may get the number of one that was just closed."""
        found = [descriptor for descriptor, _ in self._poll.poll()]
        return sorted(found, key=lambda descriptor: descriptor == self._listener.fileno())

    def _start(self, line: socket.socket) -> None:
        try:
            wanted, streams = _received(line)
        except (EOFError, OSError):  # a launcher that was killed
            line.close()
            return
        if wanted[0][0] == sys.executable:
            _forked_services().preload()
        pid = os.fork()
        if not pid:
            _become(wanted, streams)
        for stream in streams.values():
            os.close(stream)
        self._lines[line.fileno()] = line, pid
        self._poll.register(line, select.POLLIN)
        end = os.pidfd_open(pid)
        self._ends[end] = line.fileno()
        self._poll.register(end, select.POLLIN)
        with suppress(OSError):
            line.sendall(pid.to_bytes(4, "little"))

    def _finish(self, end: int) -> None:
        line, pid = self._lines.pop(self._ends.pop(end))
        self._poll.unregister(end)
        os.close(end)
        _, status = os.waitpid(pid, 0)
        with suppress(KeyError):
            self._poll.unregister(line)
        with suppress(OSError):
            line.sendall(os.waitstatus_to_exitcode(status).to_bytes(4, "little", signed=True))
        line.close()


def _received(line: socket.socket) -> tuple[Any, dict[int, int]]:
    """The command that a launcher requests, and its standard streams."""
    head, descriptors, _, _ = socket.recv_fds(line, 7, 3)
    while len(head) < 7:
        head += _some(line, 7 - len(head))
    size, present = int.from_bytes(head[:4], "little"), head[4:]
    streams = dict(zip([number for number in (0, 1, 2) if present[number]], descriptors, strict=True))
    wanted = b""
    while len(wanted) < size:
        wanted += _some(line, size - len(wanted))
    return marshal.loads(wanted), streams


def _some(line: socket.socket, most: int) -> bytes:
    found = line.recv(most)
    if not found:
        raise EOFError
    return found


def _become(wanted: Any, streams: dict[int, int]) -> None:
    """Become the command; does not return."""
    arguments, environment, folder, mask = wanted
    for number in (0, 1, 2):
        if number in streams:
            os.dup2(streams[number], number)
        else:
            os.close(number)
    os.closerange(3, 1024)
    for number in CAUGHT:
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.umask(mask)
    os.chdir(folder)
    os.environb.clear()
    os.environb.update(environment)
    time.tzset()
    with suppress(locale.Error):
        locale.setlocale(locale.LC_CTYPE, "")
    sys.argv = arguments
    _forked_services().show_as([sys.executable, *arguments])
    _open_streams()
    _run()


def _open_streams() -> None:
    """Open the standard streams as Python does at its start with a UTF-8 locale."""
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            errors = "backslashreplace" if number == 2 else "surrogateescape" if _is_plain() else "strict"
            stream: Any = open(number, mode, encoding="utf-8", errors=errors, closefd=False)  # noqa: SIM115
            if mode == "w" and (number == 2 or stream.isatty()):
                stream.reconfigure(line_buffering=True)
        except OSError:
            stream = None
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def _is_plain() -> bool:
    return locale.setlocale(locale.LC_CTYPE) in {"C", "POSIX", "C.UTF-8", "C.utf8"}


def _run() -> None:
    """Run the command, which ends the process itself unless its output can't be written; end as Python does."""
    if _is_supervisor(sys.argv):
        _forked_services().supervise(sys.argv[3:])
    if sys.argv[0] == sys.executable:
        _forked_services().run_program(sys.argv[1:])
    from sandherd.cli import main

    _forked_services().end(main)


def _is_supervisor(arguments: list[str]) -> bool:
    return arguments[1:3] == SUPERVISOR


def _forked_services() -> Any:
    """The module beside this program."""
    folder = str(Path(__file__).parent)
    if folder not in sys.path:
        sys.path.append(folder)
    return import_module("forked_services")


def main() -> None:
    """Load the modules, and serve."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.set_blocking(1, True)
    preload()
    _forked_services().replace_supervisor(Path(sys.argv[1]).with_name("python"))
    server = Server(sys.argv[1])
    os.write(1, b"r")
    gc.collect()
    gc.freeze()
    server.serve()


if __name__ == "__main__":
    main()
