"""One run of the server's program: it is started, health-checked, and ended with all processes that it started."""

import asyncio
import socket
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from signal import SIGTERM
from typing import Final

from sandherd.concurrency import SHORT_CLEANUP_SECONDS, cancel_and_wait, run_until_first
from sandherd.process_signals import end, send
from sandherd_worker.access.command_launch import CommandLaunch, LaunchedCommand, launch
from sandherd_worker.processes import ProcessOwnership, Reaper

_STATUS_200: Final = b" 200 "
_MAX_STATUS_LINE: Final = 64


async def well(port: int, path: str, seconds: float) -> bool:
    """Whether the server on this port replies with status 200 within `seconds`."""
    with suppress(OSError, TimeoutError):
        async with asyncio.timeout(seconds):
            return await _request(port, path)
    return False


async def _request(port: int, path: str) -> bool:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\n\r\n".encode())
        return _STATUS_200 in (await reader.read(_MAX_STATUS_LINE)).partition(b"\r\n")[0]
    finally:
        writer.close()


def free_port(host: str = "127.0.0.1", among: Sequence[int] = ()) -> int:
    """A port without a listener, one of `among` if that is not empty. Raises `OSError` if all of them are in use.

    Another process may take the port first: the server then ends, and is restarted on another port.
    """
    for wanted in among or (0,):
        with suppress(OSError), socket.socket() as probe:
            # As servers do: connections that linger from an ended server do not block the port.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, wanted))
            port: int = probe.getsockname()[1]
            return port
    raise OSError(f"all reachable ports are in use: {', '.join(map(str, among)) or 'any'}")


FAMILY: Final = "agent-server"
"""The owner of the server's processes in `ProcessOwnership`. They belong neither to the agent nor to a command."""
_LEFTOVER_GRACE: Final = 0.5
_MAX_TAIL_LINES: Final = 5


@dataclass(frozen=True, kw_only=True)
class HealthCheckIntervals:
    """Times of the server's health checks, in seconds. `misses` is the maximum of consecutive failed checks."""

    start: float = 120.0
    poll: float = 0.1
    """The time between two checks while the server starts."""
    between: float = 5.0
    """The time between two checks while the server is healthy."""
    answer: float = 3.0
    misses: int = 3
    grace: float = 3.0
    """How long the server may take to end after SIGTERM."""
    rest: float = 1.0
    """The delay before the server is restarted."""


@dataclass(frozen=True, kw_only=True)
class ServerCommand:
    """The server's program. Its arguments and its environment are created for each start."""

    argv: Callable[[int], Sequence[str]]
    environment: Callable[[], dict[str, str]]
    folder: Path
    health: str = "/health"
    listen: str = "127.0.0.1"
    """The address on which the server must listen."""
    ports: Sequence[int] = ()
    """The only ports that are reachable; empty means any."""


@dataclass(frozen=True)
class ServerExit:
    """How the server ended. `code` is its exit status, or the negative signal number.

    `code` is None if the server could not be started, or was ended because it did not respond.
    """

    error: str
    code: int | None = None


class ServerProcess:
    """One run, until `stop` is set at the latest. Must not be cancelled: its processes would be left running."""

    def __init__(
        self,
        server_command: ServerCommand,
        pace: HealthCheckIntervals,
        reaper: Reaper,
        ownership: ProcessOwnership,
        stop: asyncio.Event,
    ) -> None:
        self._server_command, self._pace, self._reaper, self._ownership = server_command, pace, reaper, ownership
        self._stop = stop
        self._output_tail: deque[str] = deque(maxlen=_MAX_TAIL_LINES)
        self.forced = False
        """Whether processes of the server were left when its program had ended, or had not ended in time."""

    async def live(self, started: Callable[[], Awaitable[None]], ready: Callable[[int], Awaitable[None]]) -> ServerExit:
        """Run the server until it ends; return how it ended. Calls `ready(port)` once it responds.

        No process of the server is left afterwards.
        """
        try:
            port = free_port(self._server_command.listen, self._server_command.ports)
            launched = await launch(self._launch(port), self._reaper)
        except (OSError, ValueError) as error:
            return ServerExit(f"it could not be started: {error}")
        self._ownership.enter(FAMILY, launched.leader)
        readers = [asyncio.create_task(self._read_output(pipe)) for pipe in (launched.stdout, launched.stderr)]
        try:
            await started()
            return await self._watch(launched, port, ready)
        finally:
            await self._end(launched)
            await cancel_and_wait(readers, again_after=SHORT_CLEANUP_SECONDS)
            launched.close()
            self._ownership.remove(FAMILY)

    def _launch(self, port: int) -> CommandLaunch:
        return CommandLaunch(
            argv=self._server_command.argv(port),
            environment=self._server_command.environment(),
            folder=self._server_command.folder,
            stdin=None,
        )

    async def _watch(self, launched: LaunchedCommand, port: int, ready: Callable[[int], Awaitable[None]]) -> ServerExit:
        responds = asyncio.Event()
        with suppress(TimeoutError):
            async with asyncio.timeout(self._pace.start):
                await run_until_first(
                    _ended(launched),
                    self._stop.wait(),
                    self._until_healthy(port, responds),
                    again_after=SHORT_CLEANUP_SECONDS,
                )
        if not (responds.is_set() or launched.exit.done() or self._stop.is_set()):
            return ServerExit(f"it did not respond within {self._pace.start:g} s{self._shown_tail}")
        if responds.is_set():
            await ready(port)
            await run_until_first(
                _ended(launched), self._stop.wait(), self._until_unresponsive(port), again_after=SHORT_CLEANUP_SECONDS
            )
        return (
            self._exit_of(launched) if launched.exit.done() else ServerExit(f"it no longer responds{self._shown_tail}")
        )

    def _exit_of(self, launched: LaunchedCommand) -> ServerExit:
        code = launched.exit.result()
        how = f"signal {-code}" if code < 0 else f"exit status {code}"
        return ServerExit(f"it has ended ({how}){self._shown_tail}", code)

    async def _until_healthy(self, port: int, responds: asyncio.Event) -> None:
        path, wait = self._server_command.health, self._pace.answer
        while not await well(port, path, wait):  # noqa: ASYNC110  # another program: there is no event to wait for
            await asyncio.sleep(self._pace.poll)
        responds.set()

    async def _until_unresponsive(self, port: int) -> None:
        missed = 0
        while missed < self._pace.misses:
            await asyncio.sleep(self._pace.between if missed == 0 else self._pace.poll)
            missed = 0 if await well(port, self._server_command.health, self._pace.answer) else missed + 1

    async def _end(self, launched: LaunchedCommand) -> None:
        """End the program, which ends its processes. After the grace period, end all processes that are left."""
        if not launched.exit.done():
            send([launched.leader], SIGTERM)
            await asyncio.wait([launched.exit], timeout=self._pace.grace)
        left = self._process_ids()
        self.forced = bool(left)
        await end(self._process_ids, _LEFTOVER_GRACE)

    def _process_ids(self) -> set[int]:
        return self._ownership.of(FAMILY)

    async def _read_output(self, pipe: asyncio.StreamReader) -> None:
        """Read the output, so that the server does not block, and store its last lines."""
        rest = b""
        while piece := await pipe.read(64 * 1024):
            *lines, rest = (rest + piece)[-8192:].split(b"\n")
            self._output_tail += [line.decode(errors="replace").strip()[:300] for line in lines if line.strip()]

    @property
    def _shown_tail(self) -> str:
        return f": {' / '.join(self._output_tail)}" if self._output_tail else ""


async def _ended(launched: LaunchedCommand) -> None:
    """Return when the program has ended; the future itself must not be cancelled."""
    await asyncio.wait([launched.exit])
