"""Drivers and workers as forks of a process that has their imports, which take most of a short test's time.

It is for drivers of a toolchain in its own Python, and for workers without a runtime; other drivers start cold.
"""

import asyncio
import marshal
import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Final

from tests.run_reports import SERVERS

_SERVER: Final = Path(__file__).with_name("driver_server.py")
_MODULES: Final = {
    "sandherd_drivers.acp": ("sandherd_drivers.acp.conversation",),
    "sandherd_drivers.claude": ("sandherd_drivers.claude.session",),
    "sandherd_drivers.openhands": (
        "sandherd_drivers.openhands.task_work",
        "openhands.sdk.conversation.impl.local_conversation",
        "openhands.sdk.security.confirmation_policy",
        "openhands.sdk",
        "openhands.tools.preset.default",
        "openhands.tools.terminal",
        "openhands.tools.file_editor",
        "openhands.tools.task_tracker",
    ),
    "sandherd_worker.main": (
        "sandherd.lazy_imports:start_lean",
        "sandherd.lazy_imports:load_nats",
        "sandherd_worker.worker_lifecycle",
        "sandherd_worker.attempt",
        "sandherd_worker.previous_attempt",
        "sandherd_worker.access_server",
        "sandherd_worker.access.commands",
        "sandherd_worker.access.transfers",
        "sandherd_worker.harnesses.command",
        "sandherd_worker.harnesses.program",
    ),
}
_ENVIRONMENT: Final = {
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "OPENHANDS_SUPPRESS_BANNER": "1",
    "OH_TELEMETRY_CONSENT": "false",
    "DO_NOT_TRACK": "1",
    "LOG_LEVEL": "WARNING",
}
"""Variables that the driver of OpenHands sets before it loads the SDK."""
WORKER: Final = "sandherd_worker.main"
_RUNNING: Final = ExitStack()


def can_be_forked(module: str, python: str | Path) -> bool:
    """Whether a driver of this module can be a fork."""
    return module in _MODULES and f"toolchains/{module.rpartition('.')[2]}/" in str(python)


@dataclass
class Fork:
    """A fork, with the interface of a process that asyncio has started, as far as it is used."""

    pid: int
    _end: "asyncio.Task[int]"

    @property
    def returncode(self) -> int | None:
        """Its exit status, once it has ended."""
        return self._end.result() if self._end.done() else None

    async def wait(self) -> int:
        """Wait for its end."""
        return await asyncio.shield(self._end)

    def send_signal(self, number: int) -> None:
        """Send a signal, if it runs."""
        if self.returncode is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.send_signal(15)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(9)


@dataclass
class ForkedProcess(Fork):
    """A driver, with the interface of a process that asyncio has started, as far as `DriverProcess` uses it."""

    stdin: asyncio.StreamWriter
    stdout: asyncio.StreamReader
    _transports: tuple[asyncio.BaseTransport, ...]

    async def close(self) -> None:
        """Close the pipes; the process has ended."""
        await self.wait()
        for transport in self._transports:
            transport.close()


async def start_worker(arguments: Sequence[str], environment: Mapping[str, str], folder: Path, log: int) -> Fork:
    """Start a worker; its output goes to the file `log`."""
    path = await asyncio.to_thread(_server, WORKER, sys.executable, os.environ.get("PYTHONPATH", ""))
    empty = os.open(os.devnull, os.O_RDONLY)
    try:
        pid, end = await _fork(path, WORKER, arguments, environment, folder, [empty, log])
    finally:
        os.close(empty)
    return Fork(pid, end)


async def _fork(
    path: str,
    module: str,
    arguments: Sequence[str],
    environment: Mapping[str, str],
    folder: Path,
    descriptors: list[int],
) -> tuple[int, "asyncio.Task[int]"]:
    """Have a server fork; returns the process id, and the wait for its exit status."""
    line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    line.connect(path)
    wanted = marshal.dumps((module, list(arguments), dict(environment), str(folder)))
    socket.send_fds(line, [len(wanted).to_bytes(4, "little")], descriptors)
    line.sendall(wanted)
    reader, writer = await asyncio.open_connection(sock=line)
    pid = int.from_bytes(await reader.readexactly(4), "little")
    return pid, asyncio.get_running_loop().create_task(_status(reader, writer))


async def start_fork(
    module: str, python: str | Path, packages: str, environment: Mapping[str, str], folder: Path, events: int
) -> ForkedProcess:
    """Start a driver; `events` is the write end of its events pipe."""
    loop = asyncio.get_running_loop()
    path = await asyncio.to_thread(_server, module, str(python), packages)
    (given, to_it), (from_it, printed) = os.pipe(), os.pipe()
    try:
        pid, end = await _fork(path, module, (), environment, folder, [given, printed, events])
    finally:
        for descriptor in (given, printed):
            os.close(descriptor)
    stdout = asyncio.StreamReader()
    output, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(stdout), os.fdopen(from_it, "rb"))
    transport, protocol = await loop.connect_write_pipe(
        lambda: asyncio.streams.FlowControlMixin(loop), os.fdopen(to_it, "wb")
    )
    stdin = asyncio.StreamWriter(transport, protocol, None, loop)
    return ForkedProcess(pid, end, stdin, stdout, (output, transport))


async def _status(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> int:
    try:
        return int.from_bytes(await reader.readexactly(4), "little", signed=True)
    finally:
        writer.close()


@cache
def _server(module: str, python: str, packages: str) -> str:
    """The socket of this kind's server, which is started with the first driver."""
    folder = Path(mkdtemp(prefix="d-"))
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder), "PYTHONPATH": packages, **_ENVIRONMENT}
    environment |= {name: os.environ[name] for name in ("TMPDIR", "SANDHERD_TEST_RUN") if name in os.environ}
    server = subprocess.Popen(
        [python, "-P", str(_SERVER), str(folder / "s"), *_MODULES[module]],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    _RUNNING.callback(_end, server)
    assert server.stdout is not None
    assert server.stdout.read(1) == b"r"
    SERVERS.add(server.pid)
    return str(folder / "s")


def _end(server: "subprocess.Popen[bytes]") -> None:
    assert server.stdin is not None
    assert server.stdout is not None
    server.stdin.close()
    server.wait()
    server.stdout.close()


def end() -> None:
    """End the servers."""
    _server.cache_clear()
    _RUNNING.close()
