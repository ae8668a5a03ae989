"""The spawner's side of the fork server, a process that has loaded the modules of workers, and forks workers.

The fork server is a separate program (`fork_program`), not a fork of the spawner, so it has none of the spawner's
memory, variables and descriptors. It is started when it is first needed, and again after it has ended. The processes
that it has forked do not end with it. If it can't be used, workers are started by exec.
"""

import asyncio
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from sandherd import processes
from sandherd.processes import ProcessId
from sandherd.telemetry import logs

_PROGRAM: Final = Path(__file__).with_name("fork_program.py")
_SEND_TIMEOUT_SECONDS: Final = 10.0
"""The timeout for sending a request."""
_FORK_SECONDS: Final = 20.0
"""The timeout for a reply of the child that handles a request, including the start of the program."""
_END_SECONDS: Final = 2.0
"""How long the program may take to end before it is killed."""
_RETRY_SECONDS: Final = 60.0
"""How long no program is started after one has failed: it could not be started, or ended before it forked anything."""
_FIRST_PART_BYTES: Final = 4096
"""The number of bytes of a request that are sent together with its descriptors."""
_REPLY_BYTES: Final = 1024
"""More than the length of the reply, which is a line of `/proc/<pid>/stat`."""
_log: Final = logs.get("runtime.process")


def _fork_arguments(worker: tuple[str, ...]) -> tuple[str, ...] | None:
    """The option `-m` or `-c` of a worker's command line, and its argument; None if the worker can't be forked.

    The command line must be `python -P -m module` or `python -P -c code`, with this process's Python.
    """
    match worker:
        case (sys.executable, "-P", "-m" | "-c", _):
            return worker[2:]
    return None


class Handover:
    """The connections that a thread opens for a coroutine. They are closed if the coroutine is cancelled meanwhile."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._connections: list[socket.socket] = []
        self._abandoned = False

    def add(self, connection: socket.socket) -> None:
        """Add a connection. Called by the thread."""
        with self._lock:
            self._connections.append(connection)
            if self._abandoned:
                connection.close()

    def abandon(self) -> None:
        """Close all connections, also those that are added later. Called when the coroutine is cancelled."""
        with self._lock:
            self._abandoned = True
            for connection in self._connections:
                connection.close()


class ForkServer:
    """Starts the program, and sends requests to it. Its methods may block, and are safe in several threads."""

    def __init__(self, worker: tuple[str, ...], search_path: str) -> None:
        self._arguments = _fork_arguments(worker)
        self._search_path = search_path
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._has_forked = False
        """Whether a child of the running program has handled a request."""
        self._unused_until = 0.0

    @property
    def usable(self) -> bool:
        """Whether this worker can be forked, and the program did not fail recently."""
        return self._arguments is not None and time.monotonic() >= self._unused_until

    @property
    def pid(self) -> int | None:
        """The program's process id while it runs."""
        process = self._process
        return process.pid if process and process.poll() is None else None

    def request(self, text: bytes, descriptors: Sequence[int]) -> socket.socket | None:
        """Fork a child that handles this request, and return the connection to it; None if that is not possible."""
        connection = self._connect()
        if connection is None:
            return None
        try:
            connection.settimeout(_SEND_TIMEOUT_SECONDS)
            sent = socket.send_fds(connection, [text[:_FIRST_PART_BYTES]], descriptors)
            connection.sendall(text[sent:])
            connection.shutdown(socket.SHUT_WR)
        except OSError:
            connection.close()
            return None
        return connection

    def fork(self, text: bytes, descriptors: Sequence[int]) -> ProcessId | None:
        """Fork a child that handles this request, and return the child's process id; None if that is not possible.

        If the program does not run, it is not started, because that takes longer than an exec.
        """
        connection = self.request(text, descriptors) if self._has_forked and self.pid is not None else None
        if connection is None:
            return None
        with connection, suppress(OSError):
            if reply := connection.recv(_REPLY_BYTES):
                return processes.identify(reply.decode(errors="replace"))
        self.abort()
        return None

    async def wait_forked(self, connection: socket.socket) -> None:
        """Wait until a child handles the request, and close the connection. If none replies, kill the program."""
        connection.setblocking(False)
        with connection:
            try:
                async with asyncio.timeout(_FORK_SECONDS):
                    self._has_forked |= bool(await asyncio.get_running_loop().sock_recv(connection, _REPLY_BYTES))
            except (TimeoutError, OSError):
                await asyncio.to_thread(self.abort)

    def abort(self) -> None:
        """Kill the program, because it does not reply. Requests for which it has not forked a child fail."""
        with self._lock:
            if self._process is not None:
                self._process.kill()
                self._end()

    def close(self) -> None:
        """End the program."""
        with self._lock:
            self._has_forked = True  # so that `_end` does not report a failure
            self._end()

    def _connect(self) -> socket.socket | None:
        with self._lock:
            if not self._ensure_running():
                return None
            assert self._control is not None, "it was just started"
            own_end, program_end = socket.socketpair()
            try:
                socket.send_fds(self._control, [b"f"], [program_end.fileno()])
            except OSError:  # the program has just ended, or does not read
                own_end.close()
                self._end()
                return None
            finally:
                program_end.close()
            return own_end

    def _ensure_running(self) -> bool:
        """Start the program unless it runs. Returns whether it runs."""
        if self.pid is not None:
            return True
        if self._process is not None:
            self._end()
        if not self.usable:
            return False
        try:
            self._start()
        except OSError as error:
            self._disable_temporarily(str(error))
            return False
        return True

    def _start(self) -> None:
        assert self._arguments is not None, "the worker can be forked, as `usable` is true"
        self._control, program_end = socket.socketpair()
        self._control.setblocking(False)
        environment = {"LANG": "C.UTF-8", "PATH": os.defpath}
        if self._search_path:
            environment["PYTHONPATH"] = self._search_path
        with program_end:
            self._process = subprocess.Popen(
                [sys.executable, "-P", str(_PROGRAM), str(program_end.fileno()), *self._arguments],
                pass_fds=(program_end.fileno(),), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                env=environment, cwd="/", start_new_session=True,
            )  # fmt: skip
        self._has_forked = False

    def _end(self) -> None:
        if self._control is not None:
            self._control.close()
        if self._process is None:
            return
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if not self._has_forked:
            self._disable_temporarily(f"it ended with status {self._process.returncode} before it forked a process")
        self._process = self._control = None

    def _disable_temporarily(self, reason: str) -> None:
        _log.warning("fork server failed, processes are started by exec", reason=reason)
        self._unused_until = time.monotonic() + _RETRY_SECONDS
