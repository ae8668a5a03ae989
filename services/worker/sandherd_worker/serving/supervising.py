"""The server through all its lives: started, told of, started again when it is lost, so often as that may be."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

from sandherd.contracts.events import EventData
from sandherd.contracts.events.serving import (
    AgentServerFailed,
    AgentServerReady,
    AgentServerStarted,
    AgentServerStopped,
)
from sandherd.contracts.serving import ServerState
from sandherd.telemetry import logs
from sandherd_worker.serving.life import Ended, Life, Pace
from sandherd_worker.serving.told import Told
from sandherd_worker.spool_disk import SpoolError

_log: Final = logs.get("serving")
Say = Callable[[EventData], Awaitable[object]]


class Supervisor:
    """Starting → ready → lost and started again, a bounded number of times → stopped."""

    def __init__(
        self, make: Callable[[asyncio.Event], Life], told: Told, say: Say, *, restarts: int, pace: Pace
    ) -> None:
        self._make, self._told, self._say = make, told, say
        self._restarts, self._pace = restarts, pace
        self._stop = asyncio.Event()
        self._start = 0
        self._running: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin its first life; what becomes of it are events."""
        self._running = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """End it in order, with all that it has started. Done already: nothing happens."""
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
            _log.error("what becomes of the agent server can't be kept", error=str(error))

    async def _live_once(self) -> bool:
        """One life to its end; whether there is to be another."""
        self._start += 1
        life = self._make(self._stop)
        began = asyncio.get_running_loop().time()

        async def ready(port: int) -> None:
            took = (asyncio.get_running_loop().time() - began) * 1000
            self._tell("ready", port=port)
            await self._say(
                AgentServerReady(kind=self._told.kind, start=self._start, port=port, started_ms=round(took, 1))
            )

        ended = await life.live(self._started, ready)
        if self._stop.is_set():
            await self._stopped(forced=life.forced)
            return False
        left = max(0, self._restarts - self._start + 1)
        self._tell("starting" if left else "failed", error=ended.error)
        await self._say(self._failed(ended, left))
        return left > 0

    async def _started(self) -> None:
        self._tell("starting")
        await self._say(AgentServerStarted(kind=self._told.kind, start=self._start))

    async def _stopped(self, *, forced: bool = False) -> None:
        self._tell("stopped")
        await self._say(AgentServerStopped(kind=self._told.kind, start=self._start, forced=forced))

    def _failed(self, ended: Ended, left: int) -> AgentServerFailed:
        code = ended.code
        return AgentServerFailed(
            kind=self._told.kind,
            start=self._start,
            error=ended.error,
            exit_code=code if code is not None and code >= 0 else None,
            signal=-code if code is not None and code < 0 else None,
            restarts_left=left,
        )

    def _tell(self, state: ServerState, *, port: int | None = None, error: str | None = None) -> None:
        try:
            self._told.write(state, starts=self._start, port=port, error=error)
        except OSError as failed:
            _log.error("where the agent server is can't be written down", error=str(failed))
