"""One partition while this replica holds its lease: the state of its sandboxes, and the actions for them."""

import asyncio
import math
import time
from collections.abc import Iterable
from contextlib import suppress
from datetime import datetime
from typing import Final

from monitor import urgency
from monitor.actions import Actions
from monitor.assessment.assessor import Assessor, Suspicion
from monitor.assessment.model_reply import Assessment
from monitor.enforcement import Enforcement
from monitor.evaluation import RuleFailedError
from monitor.facts import Key, ObservedEvent
from monitor.herd import Herd
from monitor.partition_plan import PartitionId
from monitor.rule_set import RuleSet
from monitor.snapshot import MAX_INTERVAL, is_due
from monitor.snapshot_store import Snapshots, SnapshotStore
from monitor.summary_writer import SummaryWriter
from sandherd.bus.broker_errors import BROKER_ERRORS
from sandherd.bus.connection import Bus
from sandherd.bus.consumers.pull import REBIND_DELAY_SECONDS
from sandherd.bus.lease import Lease
from sandherd.concurrency import run_until_first, sleep_aligned
from sandherd.contracts.events.monitor import MonitorFindingAssessed
from sandherd.telemetry import logs
from sandherd.telemetry.meters import Meters

_LEASE_CHECK_SECONDS: Final = 0.5
_log: Final = logs.get("watch")


class Partition:
    """A partition from the acquisition of its lease until the lease is lost or released.

    It restores a snapshot, and then folds in the events that the stream follower reads for it.
    """

    def __init__(
        self,
        bus: Bus,
        partition_id: PartitionId,
        lease: Lease,
        rules: RuleSet,
        *,
        snapshots: Snapshots,
        actions: Actions,
        meters: Meters,
        assessor: Assessor | None = None,
    ) -> None:
        self._bus = bus
        self._lease = lease
        self._rules = rules
        self._actions = actions.while_held(lease)
        self._meters = meters
        self._snapshots: SnapshotStore = snapshots.of(partition_id)
        self._summaries = SummaryWriter(bus, lease)
        self._enforcement = Enforcement(bus, lease, self._actions, meters, Herd(rules=rules), assessor=assessor)
        self._action_lock = asyncio.Lock()
        self._is_ending = False
        self._urgent_keys: set[Key] = set()
        self.partition_id = partition_id
        self.caught_up = asyncio.Event()
        """Set when all events that were stored before the lease was acquired have been read. The partition does not act
        before that."""
        self.read_until: int | None = None
        """The stream sequence of the last event when the lease was acquired. Once it has been read, all decisions of
        earlier holders are known."""

    @property
    def herd(self) -> Herd:
        """The state of its sandboxes."""
        return self._enforcement.herd

    @property
    def is_late(self) -> bool:
        """Whether it has not caught up."""
        return not self.caught_up.is_set()

    async def restore(self) -> None:
        """Restore the snapshot, as soon as it can be read: a stream without a leader does not respond.

        Raises `LeaseLostError`.
        """
        while True:
            self._lease.check()
            try:
                self._enforcement.herd = await self._snapshots.restore()
            except BROKER_ERRORS as error:
                _log.warning("snapshot unavailable, retrying", error=repr(error))
                await asyncio.sleep(REBIND_DELAY_SECONDS)
            else:
                return

    async def run(self) -> None:
        """Save snapshots and write summaries, until the lease is lost. Raises `LeaseLostError`."""
        await run_until_first(
            self._save_snapshots(), self._end_with_lease(), self._summaries.run(self.herd, lambda: not self.is_late)
        )

    async def end(self) -> None:
        """Stop acting, and save the state, so that the next holder need not read the same events again.

        An action that has begun is completed: the next holder reads it from the stream.
        """
        self._is_ending = True
        if not self._lease.held or not self._bus.connected:
            return
        async with self._action_lock:
            pass
        await self._save()

    # --- reading -----------------------------------------------------------------------------------------------

    def fold(self, event: ObservedEvent) -> None:
        """Fold in an event of one of its sandboxes, unless that was done before."""
        herd = self.herd
        if event.number <= herd.position:
            return
        before = herd.live.get((event.project, event.entity))
        state = herd.fold(event)
        if state is None:
            return
        try:
            is_urgent = urgency.is_urgent(before, state, event, self._rules)
        except RuleFailedError as failure:
            herd.disable(state.key, failure)
            is_urgent = True
        if is_urgent:
            self._urgent_keys.add(state.key)

    def record_assessment(self, event: ObservedEvent) -> None:
        """Count tokens that the model has used for a sandbox of another partition, because all share the allowance."""
        if event.number > self.herd.position and isinstance(event.data, MonitorFindingAssessed):
            self.herd.allowance = self.herd.allowance.with_used(event.data.tokens, event.at)

    def record_read(self, position: int) -> None:
        """Record that all events up to this stream sequence were folded in."""
        self.herd.position = max(self.herd.position, position)

    # --- acting ------------------------------------------------------------------------------------------------

    async def act_on_urgent(self, now: datetime, watching_since: datetime | None) -> None:
        """Act for the sandboxes whose recent events require it. Raises `LeaseLostError`."""
        urgent_keys, self._urgent_keys = self._urgent_keys, set()
        self._enforcement.report()
        if not self.is_late:
            await self._enforce(urgent_keys, now, watching_since)

    async def check(self, now: datetime, watching_since: datetime, *, all_read: bool) -> None:
        """Evaluate every rule for every sandbox at `now`, and publish notifications. Raises `LeaseLostError`."""
        await self._enforce(list(self.herd.live), now, watching_since)
        if not all_read:  # a notification of an unread event may have been published already
            return
        async with self._action_lock:
            if self._is_ending:
                return
            for notice in await self._actions.notify(self.herd, now):
                self._meters.count("sandherd_notifications_total", kind=notice.kind)

    async def _enforce(self, keys: Iterable[Key], now: datetime, watching_since: datetime | None) -> None:
        for key in keys:
            async with self._action_lock:
                if self._is_ending:
                    return
                await self._enforcement.enforce(key, now, watching_since)

    async def publish_assessment(self, suspicion: Suspicion, assessment: Assessment) -> None:
        """Publish a model's assessment of a suspicion. Raises `LeaseLostError`."""
        async with self._action_lock:
            if not self._is_ending:
                await self._enforcement.publish_assessment(suspicion, assessment)

    # --- the lease ---------------------------------------------------------------------------------------------

    async def _end_with_lease(self) -> None:
        while True:
            self._lease.check()
            await sleep_aligned(_LEASE_CHECK_SECONDS)

    async def _save_snapshots(self) -> None:
        """Save snapshots.

        The first one is saved immediately after catching up, so that a successor need not read the same events again.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(MAX_INTERVAL):
                await self.caught_up.wait()
        saved_at = -math.inf
        while True:
            self._lease.check()
            if is_due(self._unsaved_events, time.monotonic() - saved_at, self._snapshots.pack_seconds):
                await self._save()
                saved_at = time.monotonic()
            await sleep_aligned(1)

    @property
    def _unsaved_events(self) -> int:
        return self.herd.position - self._snapshots.position

    async def _save(self) -> None:
        if self._unsaved_events > 0:
            await self._snapshots.save(self.herd, self._lease.fence)
