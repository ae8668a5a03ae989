"""The worker's link to the herd: membership, uplink, inbox and access together, and the wait until all has gone up."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from sandherd.bus.connection import Bus
from sandherd.contracts.requests import CredentialGrant
from sandherd.telemetry import logs
from sandherd_worker.assignment import Assignment
from sandherd_worker.exits import ExitCode
from sandherd_worker.line import Line
from sandherd_worker.membership import Membership, MembershipRefusedError
from sandherd_worker.spool import Spool
from sandherd_worker.stopping import REFUSED, Stop
from sandherd_worker.tasks import end_tasks
from sandherd_worker.uplink import Uplink

_SHARE_OF_GRACE: Final = 0.85
"""How much of the runtime's grace may be used; SIGKILL comes at the end of it."""
_log: Final = logs.get("link")

Serve = Callable[[Bus], Awaitable[None]]
"""Begins to serve something on a connection, and returns at once."""


class Link:
    """Runs beside everything else, from the start of the worker to its end."""

    def __init__(self, who: Assignment, spool: Spool, stop: Stop, serving: Sequence[Serve], line: Line) -> None:
        self.uplink: Final = Uplink(spool)
        self._who = who
        self._spool = spool
        self._stop = stop
        self._serving = serving
        self._line = line
        self._refused = False
        self._admitted: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        if who.credentials is None:
            self._admitted.set_result(True)
        self._running = asyncio.create_task(self._run())

    async def admitted(self) -> bool:
        """Wait for leave to begin; False if there is none, or if the worker has to end before there is."""
        asked = asyncio.create_task(self._stop.asked())
        waiting: list[asyncio.Future[Any]] = [self._admitted, asked, self._running]
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        await end_tasks([asked])
        return self._admitted.done() and self._admitted.result()

    async def drain(self) -> ExitCode:
        """Wait until the broker has everything, or until there is no sense or no time left to wait."""
        empty = asyncio.create_task(self._spool.until(lambda: self._spool.depth == 0))
        late = asyncio.create_task(self._stop.terminated(self._who.stop_grace * _SHARE_OF_GRACE))
        await asyncio.wait([empty, late, self._running], return_when=asyncio.FIRST_COMPLETED)
        drained = empty.done()
        await end_tasks([empty, late])
        if drained:
            return ExitCode.DRAINED
        if self._running.done():
            return ExitCode.REFUSED if self._refused else ExitCode.INTERNAL
        return ExitCode.SPOOL if self._spool.trouble else ExitCode.NOT_DRAINED

    async def close(self) -> None:
        """End the connection."""
        await end_tasks([self._running])
        self.uplink.close()

    async def _run(self) -> None:
        try:
            await Membership(self._who, self._session, self._granted).run()
        except MembershipRefusedError as refusal:
            _log.error("no credential for this sandbox any more", reason=str(refusal))
            self._refused = True
            self._stop.ask(REFUSED)

    def _granted(self, grant: CredentialGrant) -> None:
        """The first grant says whether to begin; what was begun is not asked about again."""
        if not self._admitted.done():
            self._admitted.set_result(grant.may_start)

    async def _session(self, bus: Bus) -> None:
        self._line.take(bus)
        try:
            for serve in self._serving:
                await serve(bus)
            await self.uplink.run(bus)
        finally:
            self._line.drop()
