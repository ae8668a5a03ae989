"""The worker's connection to the herd: enrollment, uplink, inbox and access together, and draining of the spool."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from sandherd.bus.connection import Bus
from sandherd.concurrency import SHORT_CLEANUP_SECONDS, cancel_and_wait
from sandherd.contracts.requests import CredentialGrant
from sandherd.telemetry import logs
from sandherd_worker.assignment import Assignment
from sandherd_worker.enrollment import Enrollment, EnrollmentRefusedError
from sandherd_worker.spool import Spool
from sandherd_worker.uplink import Uplink
from sandherd_worker.worker_exit import REFUSED, ExitCode, StopRequest


class CurrentConnection:
    """The worker's current connection to the broker, if any."""

    def __init__(self) -> None:
        self._bus: Bus | None = None
        self._taken = asyncio.Event()

    def set(self, bus: Bus) -> None:
        """Set the current connection."""
        self._bus = bus
        self._taken.set()

    def drop(self) -> None:
        """Clear the connection until the next one is set."""
        self._bus = None
        self._taken.clear()

    async def bus(self) -> Bus:
        """Wait for a connection and return it."""
        while self._bus is None:
            await self._taken.wait()
        return self._bus


_SHARE_OF_GRACE: Final = 0.85
"""The share of the runtime's grace period in which the spool may be drained. At its end, the runtime sends SIGKILL."""
_log: Final = logs.get("broker_session")

Serve = Callable[[Bus], Awaitable[None]]
"""Starts to serve requests on a connection, and returns at once."""


class BrokerSession:
    """The worker's connection to the herd, which a background task keeps until the worker's end."""

    def __init__(
        self, assignment: Assignment, spool: Spool, stop: StopRequest, serving: Sequence[Serve], line: CurrentConnection
    ) -> None:
        self.uplink: Final = Uplink(spool)
        self._assignment = assignment
        self._spool = spool
        self._stop = stop
        self._serving = serving
        self._line = line
        self._refused = False
        self._admitted: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        if assignment.credentials is None:
            self._admitted.set_result(True)
        self._running = asyncio.create_task(self._run())

    async def admitted(self) -> bool:
        """Wait until the agent may start. False if the start is refused, or if the worker must end first."""
        stop_requested = asyncio.create_task(self._stop.wait())
        waiting: list[asyncio.Future[Any]] = [self._admitted, stop_requested, self._running]
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        await cancel_and_wait([stop_requested], again_after=SHORT_CLEANUP_SECONDS)
        return self._admitted.done() and self._admitted.result()

    async def drain(self) -> ExitCode:
        """Wait until the broker has acknowledged all records, the session has ended, or the grace period expires."""
        empty = asyncio.create_task(self._spool.until(lambda: self._spool.depth == 0))
        late = asyncio.create_task(self._stop.terminated(self._assignment.stop_grace * _SHARE_OF_GRACE))
        await asyncio.wait([empty, late, self._running], return_when=asyncio.FIRST_COMPLETED)
        drained = empty.done()
        await cancel_and_wait([empty, late], again_after=SHORT_CLEANUP_SECONDS)
        if drained:
            return ExitCode.DRAINED
        if self._running.done():
            return ExitCode.REFUSED if self._refused else ExitCode.INTERNAL
        return ExitCode.SPOOL if self._spool.trouble else ExitCode.NOT_DRAINED

    async def close(self, *, again_after: float = SHORT_CLEANUP_SECONDS) -> None:
        """Close the connection. Its task is cancelled again after this many seconds, until it has ended."""
        await cancel_and_wait([self._running], again_after=again_after)
        self.uplink.close()

    async def _run(self) -> None:
        try:
            await Enrollment(self._assignment, self._session, self._granted).run()
        except EnrollmentRefusedError as refusal:
            _log.error("credential refused, worker ends", reason=str(refusal))
            self._refused = True
            self._stop.request(REFUSED)
        except Exception:
            # The worker ends with `INTERNAL`; code that awaits this task only sees that it has ended.
            _log.exception("connection to the herd failed, worker ends")
            raise

    def _granted(self, grant: CredentialGrant) -> None:
        """The first grant decides whether to start; later grants do not stop what was started."""
        if not self._admitted.done():
            self._admitted.set_result(grant.may_start)

    async def _session(self, bus: Bus) -> None:
        self._line.set(bus)
        try:
            for serve in self._serving:
                await serve(bus)
            await self.uplink.run(bus)
        finally:
            self._line.drop()
