"""Cuts off sandboxes that flood the broker: revokes their credentials, closes their connections and ends them.

It closes connections of clients that flood the broker, or whose waiting commands use too much of the stream COMMANDS.
If a user has too many connections, it closes the excess connections. If the user repeatedly opens too many, it revokes
the user's credential. It reads the broker's counters once a second, on the replica that reconciles sandboxes.
"""

import asyncio
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from sandherd.bus.connection_list import BrokerConnections
from sandherd.bus.consumers.fair_queue import lane_of
from sandherd.bus.consumers.outcomes import Delivery
from sandherd.concurrency import run_until_first, sleep_aligned
from sandherd.contracts.failures import ErrorType
from sandherd.contracts.requests import SandboxView
from sandherd.contracts.states import SANDBOX_ENDED, SANDBOX_ENDING
from sandherd.settings import Settings
from sandherd.telemetry import logs
from spawner.live_state import LiveState
from spawner.records.base_record import IndexEntry
from spawner.sandboxes import sandbox_transitions
from spawner.sandboxes.abused_credentials import AbusedCredentials
from spawner.sandboxes.command_backlog import CommandBacklog
from spawner.sandboxes.credentials import Revoke
from spawner.sandboxes.fenced_writes import LeaseState
from spawner.sandboxes.flood_limits import (
    CHECK_SECONDS,
    USER_PRINCIPALS,
    CutOff,
    ExceededLimit,
    FloodLimits,
    FloodMeter,
    FloodResult,
)
from spawner.sandboxes.reconciler import FOR_NOW, SandboxReconciler
from spawner.sandboxes.sandbox_record import SandboxRecord

_MAX_REVOCATION: Final = timedelta(days=7)
"""How long a token without an expiry is revoked. No token of a sandbox is valid for longer."""
_log: Final = logs.get("flood_guard")


def limits_of(settings: Settings) -> FloodLimits:
    """The limits from the settings."""
    return FloodLimits(
        messages=settings.flood_messages,
        project_messages=settings.flood_project_messages,
        bytes=settings.flood_mb * 1024 * 1024 / 60,
        person_connections=settings.person_connections,
        client_messages=settings.client_messages,
    )


class FloodGuard:
    """Ends sandboxes that flood the broker. `lease`: the lease for reconciling sandboxes."""

    def __init__(
        self,
        live: LiveState,
        lease: LeaseState,
        revoker: Revoke,
        keeper: SandboxReconciler,
        *,
        backlog: CommandBacklog,
        abused: AbusedCredentials,
        limits: FloodLimits,
    ) -> None:
        self._live = live
        self._lease = lease
        self._revoker = revoker
        self._keeper = keeper
        self._backlog = backlog
        self._abused = abused
        self._limits = limits
        self._above_share: frozenset[str] = frozenset()
        """Projects whose waiting commands use more than their share of COMMANDS."""
        self._cut_off_keys: set[str] = set()
        """Sandboxes that were cut off by this replica: their events need no handling."""
        self._unfinished: dict[tuple[str, str], CutOff] = {}
        """Sandboxes that could not be cut off yet: this is retried, even if the flood has ended meanwhile."""

    def was_cut_off(self, delivery: Delivery) -> bool:
        """Whether an event was published by a sandbox that was cut off. Such events are ignored: they may be many."""
        key = ".".join(lane_of(delivery))
        return key in self._cut_off_keys or self._is_ended_for_flooding(self._live.sandbox_index.get(key))

    @staticmethod
    def _is_ended_for_flooding(known: IndexEntry[SandboxView] | None) -> bool:
        return known is not None and known.view.reason == ErrorType.FLOODING and known.view.state in SANDBOX_ENDING

    async def run(self, url: str, credentials: Path) -> None:
        """Check once a second while the lease is held, until cancelled."""
        if not await asyncio.to_thread(credentials.exists):
            _log.error("flood guard disabled: run `sandherd identity init` again", missing=str(credentials))
            await asyncio.Event().wait()
        self._abused.check_keys()
        async with BrokerConnections.open(url, credentials) as table:
            await run_until_first(self._check_connections(table), self._check_backlog())

    async def _check_connections(self, table: BrokerConnections) -> None:
        meter = FloodMeter(self._limits)  # also used after a loss of the lease, because a flood may cause that loss
        while True:
            if self._lease.held:
                await self._check(table, meter)
            await sleep_aligned(CHECK_SECONDS)

    async def _check_backlog(self) -> None:
        """Measure the waiting commands. A separate loop: a stream that does not respond must not delay other checks."""
        while True:
            found: Collection[str] = ()
            if self._lease.held:
                try:
                    found = await self._backlog.projects_above_share()
                except FOR_NOW as error:
                    _log.warning("pending commands not measured, retrying", error=repr(error))
            self._above_share = frozenset(found)
            await sleep_aligned(CHECK_SECONDS)

    async def _check(self, table: BrokerConnections, meter: FloodMeter) -> None:
        try:
            connections = await table.read()
            result = meter.evaluate(connections, time.monotonic(), self._above_share)
        except FOR_NOW as error:
            _log.warning("connections not listed, retrying", error=repr(error))
            return
        await self._close(table, result)
        try:
            await self._abused.enforce(result.abuses, connections, self._live.now())
        except FOR_NOW as error:
            _log.warning("credential of a user not revoked, retrying", error=repr(error))
        self._unfinished |= {found.key: found for found in (*result.cut_offs, *self._reported_by_monitor())}
        for key, found in list(self._unfinished.items()):
            try:
                await self.cut_off(found)
            except FOR_NOW as error:
                _log.warning("flooding sandbox not disconnected, retrying", sandbox=key[1], error=repr(error))
            else:
                del self._unfinished[key]

    async def _close(self, table: BrokerConnections, result: FloodResult) -> None:
        for project in result.flooded:
            _log.warning("flooding clients disconnected", project=project)
        for connection in result.closed:
            if connection.user.principal in USER_PRINCIPALS:
                self._live.meters.count("sandherd_connections_closed_total")
            with suppress(*FOR_NOW):  # the next check finds it again
                await table.close(connection)

    def _reported_by_monitor(self) -> Iterator[CutOff]:
        """Sandboxes that the monitor ends for flooding. Their credentials are revoked before the sandboxes stop."""
        for key, known in self._live.sandbox_index.items():
            if (
                key not in self._cut_off_keys
                and self._is_ended_for_flooding(known)
                and known.view.state not in SANDBOX_ENDED
            ):
                yield CutOff(
                    (known.view.project, known.view.sandbox),
                    ExceededLimit.REPORTED,
                    (),
                    "the sandbox flooded the stream",
                )

    async def cut_off(self, found: CutOff) -> None:
        """Revoke the sandbox's connected credentials, record why it ends, and revoke its other credentials."""
        key, now = ".".join(found.key), self._live.now()
        if key not in self._cut_off_keys:
            self._cut_off_keys.add(key)
            self._live.meters.count("sandherd_sandboxes_cut_off_total", excess=found.excess)
            _log.error("flooding sandbox disconnected", project=found.key[0], sandbox=found.key[1], excess=found.excess)
        await self._revoke({user.public_key: _revoked_until(user.expires, now) for user in found.users}, now)
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
    return sandbox_transitions.stopping(record, ErrorType.FLOODING, now, error=error, error_type=ErrorType.FLOODING)


def _revoked_until(expires: int | None, now: datetime) -> datetime:
    return now + _MAX_REVOCATION if expires is None else datetime.fromtimestamp(expires, UTC)
