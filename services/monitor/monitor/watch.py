"""The watch: reads the stream, maintains the herd, evaluates the rules, and acts. Only the lease holder runs it."""

import asyncio
from collections.abc import Sequence
from datetime import datetime
from typing import Final

import nats.errors
import nats.js.errors

from monitor import gauges, inspection, urgency
from monitor.actions import Actions
from monitor.assessment.assessor import Assessor
from monitor.enforcement import Enforcement
from monitor.evaluation import RuleFailedError
from monitor.event_decoder import read
from monitor.event_reader import EventReader, ReadPosition
from monitor.facts import Key, ObservedEvent
from monitor.herd import Herd
from monitor.rule_set import RuleSet
from monitor.snapshot_store import SnapshotStore
from monitor.summary_writer import SummaryWriter
from sandherd.bus.connection import Bus
from sandherd.bus.consumers.consumer import Delivery
from sandherd.bus.consumers.pull import REBIND, ConsumerUnresponsiveError
from sandherd.bus.lease import Lease, LeaseLostError
from sandherd.concurrency import run_until_first
from sandherd.contracts.requests.monitor import MonitorView, ShowSandbox
from sandherd.service.requests import IncomingRequest
from sandherd.telemetry import logs
from sandherd.telemetry.meters import Meters

SNAPSHOT_EVERY: Final = 15.0
_NEAR: Final = 2000
"""Maximum events that may be unread at the end of a stream whose last events were removed."""
_LEASE_CHECKED_EVERY: Final = 0.5
_NO_REPLY: Final = (nats.js.errors.Error, nats.errors.Error, asyncio.TimeoutError, OSError)
_log: Final = logs.get("watch")


class Watch:
    """One tenure of the lease: restores a snapshot and follows the stream, until another replica has the lease."""

    def __init__(
        self,
        bus: Bus,
        lease: Lease,
        rules: RuleSet,
        *,
        actions: Actions,
        reader: EventReader,
        meters: Meters,
        assessor: Assessor | None = None,
    ) -> None:
        self._bus = bus
        self._lease = lease
        self._rules = rules
        self._actions = actions
        self._reader = reader
        self._meters = meters
        self._assessor = assessor
        self._snapshots = SnapshotStore(bus, rules)
        self._summaries = SummaryWriter(bus, lease)
        self._herd = Herd(rules=rules)
        self._enforcement = Enforcement(bus, lease, actions, meters, self._herd, assessor=assessor)
        self._read_at: datetime | None = None
        self._watching_since: datetime | None = None
        self._reconnects = -1
        self._read_until: int | None = None
        """The last event at the beginning: once it is read, what an earlier holder decided is known."""
        self._last_position = -1
        self._caught_up = False
        self._all_read = False
        self._touched: set[Key] = set()

    async def show(self, incoming: IncomingRequest[ShowSandbox]) -> MonitorView:
        """Reply with what is known of a sandbox. Raises `ContractError`: not found, or past events are still read."""
        key, now = (incoming.project, incoming.request.sandbox), self._read_at
        state = self._herd.live.get(key)
        if state is None or now is None:
            raise inspection.unknown(key[1], complete=self._caught_up)
        return inspection.view(state, self._rules, max(now, state.last_sign_at))

    async def run(self, check_interval: float) -> None:
        """Watch until the lease is lost."""
        try:
            self._herd = await self._restored()
            self._enforcement.herd = self._herd
            await run_until_first(
                self._follow(),
                self._tick_on(check_interval),
                self._save_on(),
                self._end_with_lease(),
                self._assess(),
                self._summaries.run(self._herd, lambda: self._caught_up),
            )
        except LeaseLostError:
            _log.warning("lease lost, watch stopped")
        finally:
            await self._save_last()

    async def _restored(self) -> Herd:
        """The herd of the snapshot, as soon as it can be read: a stream without a leader does not respond.

        Raises `LeaseLostError`.
        """
        while True:
            self._lease.check()
            try:
                return await self._snapshots.restore()
            except _NO_REPLY as error:
                _log.warning("snapshot unavailable, retrying", error=repr(error))
                await asyncio.sleep(REBIND)

    async def _save_last(self) -> None:
        """Save what was folded last, so that the next holder need not read it again."""
        if self._lease.held and self._bus.connected and self._herd.position > self._snapshots.position:
            await self._snapshots.save(self._herd, self._lease.fence)
        await self._reader.stop()
        gauges.remove(self._meters)

    async def _end_with_lease(self) -> None:
        while True:
            self._lease.check()
            await asyncio.sleep(_LEASE_CHECKED_EVERY)

    # --- reading -----------------------------------------------------------------------------------------------

    async def _follow(self) -> None:
        while True:
            try:
                await self._reader.start(self._herd.position)
                while True:
                    self._fold_batch(await self._reader.next_batch())
                    await self._act_on_touched()
            except ConsumerUnresponsiveError as error:
                self._caught_up, self._read_until = False, None
                _log.warning("stream not responding, reading again", position=self._herd.position, error=str(error))
                await asyncio.sleep(REBIND)

    def _fold_batch(self, batch: Sequence[Delivery]) -> None:
        self._touched.clear()
        for event in batch:
            seen = read(event.subject, event.data, event.stream_sequence, event.at)
            if seen is not None:
                self._fold(seen)
            self._herd.position, self._read_at = event.stream_sequence, event.at

    def _fold(self, seen: ObservedEvent) -> None:
        before = self._herd.live.get((seen.project, seen.entity))
        state = self._herd.fold(seen)
        if state is None:
            return
        try:
            urgent = urgency.is_urgent(before, state, seen, self._rules)
        except RuleFailedError as failure:
            self._herd.disable(state.key, failure)
            urgent = True
        if urgent:
            self._touched.add(state.key)

    async def _act_on_touched(self) -> None:
        self._enforcement.report()
        if not self._caught_up or self._read_at is None:
            return
        for key in list(self._touched):
            await self._enforcement.enforce(key, self._read_at, self._watching_since)

    # --- rules -------------------------------------------------------------------------------------------------

    async def _tick_on(self, check_interval: float) -> None:
        while True:
            self._lease.check()
            try:
                await self.tick()
            except ConsumerUnresponsiveError as error:
                _log.warning("broker not responding, rules not evaluated", error=str(error))
            await asyncio.sleep(check_interval)

    async def tick(self) -> None:
        """Evaluate every rule for every live sandbox, as of the moment up to which all events were read."""
        now = await self._now()
        if now is None or self._watching_since is None:
            return
        for key in list(self._herd.live):
            await self._enforcement.enforce(key, now, self._watching_since)
        if self._all_read:  # else one that is still unread may have been published already
            for notice in await self._actions.notify(self._herd, now, self._lease.check):
                self._meters.count("sandherd_notifications_total", kind=notice.kind)
        gauges.measure(self._meters, self._herd, now)

    async def _now(self) -> datetime | None:
        """The broker's time up to which no event can be missing; None while past events are still being read."""
        if self._reader.problem() is not None:
            return None
        position = self._herd.position
        reached = await self._reader.reached(position)
        self._meters.set("sandherd_monitor_lag_messages", reached.left)
        self._note_return(reached)
        self._caught_up = self._caught_up or self._has_caught_up(position, reached.left)
        self._all_read = reached.left == 0
        if not self._caught_up:
            return None
        return reached.requested_at if reached.left == 0 else self._read_at

    def _has_caught_up(self, position: int, left: int) -> bool:
        """Whether all events of an earlier holder were read; none may come any more if the last ones were removed."""
        if self._read_until is None:
            self._read_until = position + left
        stands, self._last_position = position == self._last_position, position
        return position >= self._read_until or (stands and left <= _NEAR)

    def _note_return(self, reached: ReadPosition) -> None:
        """Record the time of a start or reconnect: from then on, silence of a worker counts."""
        if self._reconnects != self._bus.reconnects:
            self._reconnects = self._bus.reconnects
            self._watching_since = reached.requested_at

    async def _assess(self) -> None:
        """Have soft findings assessed, if there is a model."""
        if self._assessor is None:
            await asyncio.Event().wait()
        else:
            await self._assessor.run(self._is_allowance_spent, self._enforcement.publish_assessment)

    def _is_allowance_spent(self) -> bool:
        assert self._assessor is not None
        assert self._read_at is not None
        return self._herd.allowance.is_spent(self._assessor.tokens_a_day, self._read_at)

    # --- snapshots ---------------------------------------------------------------------------------------------

    async def _save_on(self) -> None:
        while True:
            await asyncio.sleep(SNAPSHOT_EVERY)
            self._lease.check()
            if self._herd.position > self._snapshots.position:
                await self._snapshots.save(self._herd, self._lease.fence)
