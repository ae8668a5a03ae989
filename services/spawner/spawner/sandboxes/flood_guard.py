"""Cuts off sandboxes that flood the broker: credentials revoked, connections closed, the sandbox ended.

It looks at the broker's own counters once a second, on the replica that leads sandboxes.
"""

import asyncio
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from sandherd.bus.connections import ConnectionTable
from sandherd.bus.lanes import lane_of
from sandherd.bus.outcomes import Delivery
from sandherd.contracts.failures import ErrorType
from sandherd.contracts.requests import SandboxView
from sandherd.contracts.states import SANDBOX_ENDED, SANDBOX_ENDING
from sandherd.settings import Settings
from sandherd.telemetry import logs
from spawner.live import Live
from spawner.records.known import Known
from spawner.sandboxes import decisions
from spawner.sandboxes.credentials import Revoke
from spawner.sandboxes.flood_limits import CutOff, Excess, FloodLimits, FloodMeter
from spawner.sandboxes.keeper import FOR_NOW, Keeper
from spawner.sandboxes.leading import HeldLease
from spawner.sandboxes.record import SandboxRecord

LOOKED_EVERY: Final = 1.0
_FOREVER: Final = timedelta(days=7)
"""For a token that names no end: none of a sandbox's lives longer."""
_log: Final = logs.get("floods")


def limits_of(settings: Settings) -> FloodLimits:
    """The limits, as they are set."""
    return FloodLimits(
        messages=settings.flood_messages,
        project_messages=settings.flood_project_messages,
        bytes=settings.flood_mb * 1024 * 1024 / 60,
        person_connections=settings.person_connections,
    )


class FloodGuard:
    """Ends what floods. `lease` is the one of whoever leads sandboxes."""

    def __init__(self, live: Live, lease: HeldLease, revoker: Revoke, keeper: Keeper, limits: FloodLimits) -> None:
        self._live = live
        self._lease = lease
        self._revoker = revoker
        self._keeper = keeper
        self._limits = limits
        self._cut: set[str] = set()
        """Sandboxes that were cut off by this replica: their events need no handling."""

    def was_cut_off(self, delivery: Delivery) -> bool:
        """Whether an event is of a sandbox that was cut off: it changes nothing any more, and there may be many."""
        key = ".".join(lane_of(delivery))
        return key in self._cut or self._is_marked(self._live.sandbox_index.get(key))

    @staticmethod
    def _is_marked(known: Known[SandboxView] | None) -> bool:
        return known is not None and known.view.reason == ErrorType.FLOODING and known.view.state in SANDBOX_ENDING

    async def run(self, url: str, credentials: Path) -> None:
        """Look once a second while the lease is held. Until cancelled."""
        if not await asyncio.to_thread(credentials.exists):
            _log.error("floods are not cut off: run `sandherd identity init` again", missing=str(credentials))
            await asyncio.Event().wait()
        async with ConnectionTable.open(url, credentials) as table:
            meter, held = FloodMeter(self._limits), False
            while True:
                if self._lease.held and not held:
                    meter = FloodMeter(self._limits)
                held = self._lease.held
                if held:
                    await self._look(table, meter)
                await asyncio.sleep(LOOKED_EVERY)

    async def _look(self, table: ConnectionTable, meter: FloodMeter) -> None:
        try:
            judgement = meter.judge(await table.read(), time.monotonic())
        except FOR_NOW as error:
            _log.warning("connections can't be listed now", error=repr(error))
            return
        for connection in judgement.closed:
            self._live.meters.count("sandherd_connections_closed_total")
            with suppress(*FOR_NOW):  # the next look finds it again
                await table.close(connection)
        for found in (*judgement.cut_offs, *self._reported()):
            try:
                await self.cut_off(found)
            except FOR_NOW as error:
                _log.warning("not cut off yet", sandbox=found.key[1], error=repr(error))

    def _reported(self) -> Iterator[CutOff]:
        """Sandboxes that the monitor has ended for it: what they were granted is revoked before they have stopped."""
        for key, known in self._live.sandbox_index.items():
            if key not in self._cut and self._is_marked(known) and known.view.state not in SANDBOX_ENDED:
                yield CutOff(
                    (known.view.project, known.view.sandbox), Excess.REPORTED, (), "the sandbox flooded the stream"
                )

    async def cut_off(self, found: CutOff) -> None:
        """Revoke what is connected, write down why the sandbox ends, and revoke what else it was granted."""
        key, now = ".".join(found.key), self._live.now()
        if key not in self._cut:
            self._cut.add(key)
            self._live.meters.count("sandherd_sandboxes_cut_off_total", excess=found.excess)
            _log.error("sandbox cut off", project=found.key[0], sandbox=found.key[1], excess=found.excess)
        await self._revoke({user.public_key: _end_of(user.expires, now) for user in found.users}, now)
        held = await self._live.change_sandbox(key, lambda record: _cut_off(record, found.error, now))
        if held is not None:
            await self._revoke(
                {row.public_key: row.expires_at for row in held.record.keys if row.expires_at > now}, now
            )
        self._keeper.wake(key)

    async def _revoke(self, keys: Mapping[str, datetime], now: datetime) -> None:
        if keys:
            await self._revoker.revoke(keys, now)


def _cut_off(record: SandboxRecord, error: str, now: datetime) -> SandboxRecord:
    return decisions.stopping(record, ErrorType.FLOODING, now, error=error, error_type=ErrorType.FLOODING)


def _end_of(expires: int | None, now: datetime) -> datetime:
    return now + _FOREVER if expires is None else datetime.fromtimestamp(expires, UTC)
