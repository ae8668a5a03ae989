"""Supervises the server: starts it, publishes its state, and restarts it up to a maximum number of times."""

import asyncio
import json
import os
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sandherd.contracts.agent_server import ServerState
from sandherd.contracts.events import EventData
from sandherd.contracts.events.agent_server import (
    AgentServerFailed,
    AgentServerReady,
    AgentServerStarted,
    AgentServerStopped,
)
from sandherd.telemetry import logs
from sandherd_worker.agent_server.server_process import HealthCheckIntervals, ServerExit, ServerProcess
from sandherd_worker.spool_disk import SpoolError

FILE: Final = "agent-server.json"
"""The name of the status file in the state directory, where the spawner reads it."""
_OWNER_ONLY: Final = 0o600


@dataclass(frozen=True)
class StatusFile:
    """The status file, and those of its fields that do not change."""

    path: Path
    kind: str
    key: str

    def write(self, state: ServerState, *, starts: int, port: int | None = None, error: str | None = None) -> None:
        """Replace the file atomically, readable only by its owner. Raises `OSError`."""
        status = {"kind": self.kind, "state": state, "starts": starts, "port": port, "key": self.key, "error": error}
        new_path = self.path.with_suffix(".new")
        new_path.unlink(missing_ok=True)
        descriptor = os.open(new_path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _OWNER_ONLY)
        with os.fdopen(descriptor, "w") as file:
            json.dump(status, file)
        new_path.replace(self.path)


_log: Final = logs.get("agent_server")
Publish = Callable[[EventData], Awaitable[object]]


class Supervisor:
    """Runs the server: starts it, restarts it a limited number of times if it ends, and stops it."""

    def __init__(
        self,
        make: Callable[[asyncio.Event], ServerProcess],
        status: StatusFile,
        publish: Publish,
        *,
        restarts: int,
        pace: HealthCheckIntervals,
    ) -> None:
        self._make, self._status, self._publish = make, status, publish
        self._restarts, self._pace = restarts, pace
        self._stop = asyncio.Event()
        self._start = 0
        self._running: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start the server in a task, which publishes its states as events."""
        self._running = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Stop the server with all its processes. Idempotent."""
        self._stop.set()
        if self._running is not None:
            await asyncio.wait([self._running])

    async def _run(self) -> None:
        try:
            while await self._live_once():
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._pace.rest):
                        await self._stop.wait()
                if self._stop.is_set():
                    await self._stopped()
                    return
        except SpoolError as error:
            _log.error("agent server events not written to spool", error=str(error))

    async def _live_once(self) -> bool:
        """Run the server until it ends; returns whether to restart it."""
        self._start += 1
        process = self._make(self._stop)
        began = asyncio.get_running_loop().time()

        async def ready(port: int) -> None:
            took = (asyncio.get_running_loop().time() - began) * 1000
            self._write_status("ready", port=port)
            await self._publish(
                AgentServerReady(kind=self._status.kind, start=self._start, port=port, started_ms=round(took, 1))
            )

        server_exit = await process.live(self._started, ready)
        if self._stop.is_set():
            await self._stopped(forced=process.forced)
            return False
        left = max(0, self._restarts - self._start + 1)
        self._write_status("starting" if left else "failed", error=server_exit.error)
        await self._publish(self._failed(server_exit, left))
        return left > 0

    async def _started(self) -> None:
        self._write_status("starting")
        await self._publish(AgentServerStarted(kind=self._status.kind, start=self._start))

    async def _stopped(self, *, forced: bool = False) -> None:
        self._write_status("stopped")
        await self._publish(AgentServerStopped(kind=self._status.kind, start=self._start, forced=forced))

    def _failed(self, server_exit: ServerExit, left: int) -> AgentServerFailed:
        code = server_exit.code
        return AgentServerFailed(
            kind=self._status.kind,
            start=self._start,
            error=server_exit.error,
            exit_code=code if code is not None and code >= 0 else None,
            signal=-code if code is not None and code < 0 else None,
            restarts_left=left,
        )

    def _write_status(self, state: ServerState, *, port: int | None = None, error: str | None = None) -> None:
        try:
            self._status.write(state, starts=self._start, port=port, error=error)
        except OSError as failed:
            _log.error("agent server status file not written", error=str(failed))
