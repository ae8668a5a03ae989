"""The watch of one replica: follows the stream for the partitions that it holds, evaluates the rules, and acts."""

import asyncio
from contextlib import suppress
from datetime import UTC, datetime
from typing import Final, NamedTuple

from monitor import gauges, sandbox_inspection
from monitor.actions import Actions
from monitor.assessment.assessor import Assessor, Suspicion
from monitor.assessment.model_reply import Assessment
from monitor.partition import Partition
from monitor.partition_plan import PartitionId, partition_of
from monitor.rule_set import RuleSet
from monitor.snapshot_store import Snapshots
from monitor.stream_follower import StreamFollower
from sandherd.bus.connection import Bus
from sandherd.bus.consumers.pull import ConsumerUnresponsiveError
from sandherd.bus.lease import Lease, LeaseLostError
from sandherd.bus.stream_bounds import StreamBounds
from sandherd.concurrency import run_until_first, sleep_aligned
from sandherd.contracts.requests.monitor import MonitorView, ShowSandbox
from sandherd.service.requests import IncomingRequest
from sandherd.telemetry import logs
from sandherd.telemetry.meters import Meters

_log: Final = logs.get("watch")


class _EvaluationTime(NamedTuple):
    """The broker's time up to which all events have been read, and whether these are all that are stored."""

    at: datetime
    all_read: bool


class ReplicaWatch:
    """Watches the sandboxes in the partitions that this replica holds, of `count` partitions."""

    def __init__(
        self,
        bus: Bus,
        count: int,
        rules: RuleSet,
        *,
        actions: Actions,
        meters: Meters,
        assessor: Assessor | None = None,
    ) -> None:
        self._bus = bus
        self._count = count
        self._rules = rules
        self._actions = actions
        self._meters = meters
        self._assessor = assessor
        self._snapshots = Snapshots(bus, rules)
        self._follower = StreamFollower(bus, count, on_new=self._act_on_events, on_joined=self._begin)
        self._watching_since: datetime | None = None
        self._reconnects = -1

    async def run(self, check_interval: float) -> None:
        """Watch the held partitions until cancelled."""
        await run_until_first(self._follower.run(), self._tick_repeatedly(check_interval), self._assess())

    async def hold(self, partition_id: PartitionId, lease: Lease) -> None:
        """Watch one partition until its lease is lost."""
        partition = Partition(
            self._bus, partition_id, lease, self._rules,
            snapshots=self._snapshots, actions=self._actions, meters=self._meters, assessor=self._assessor,
        )  # fmt: skip
        try:
            await partition.restore()
            self._follower.add(partition)
            await partition.run()
        except LeaseLostError:
            _log.warning("lease lost, watch stopped", lease=lease.key)
        finally:
            self._follower.remove(partition)
            await partition.end()
            if not self._follower.partitions:
                gauges.remove(self._meters)

    def show(self, incoming: IncomingRequest[ShowSandbox]) -> MonitorView | None:
        """The view of a sandbox; None if this replica does not hold its partition.

        Raises `ContractError` if it is not found, or if past events are still being read.
        """
        key = incoming.project, incoming.request.sandbox
        partition = self._follower.partitions.get(partition_of(*key, self._count))
        if partition is None:
            return None
        state = partition.herd.live.get(key)
        if state is None:
            raise sandbox_inspection.unknown_sandbox(key[1], complete=not partition.is_late)
        return sandbox_inspection.view(
            state, self._rules, max(self._follower.read_at or state.last_sign_at, state.last_sign_at)
        )

    def problem(self) -> str | None:
        """Why events can't be read; None if they can, or if this replica holds no partition."""
        return self._follower.reader.problem() if self._follower.partitions else None

    async def _act_on_events(self, partition: Partition) -> None:
        """Take the actions that the last events require."""
        if self._follower.read_at is not None:
            with suppress(LeaseLostError):  # the partition notices it itself
                await partition.act_on_urgent(self._follower.read_at, self._watching_since)

    # --- rules -------------------------------------------------------------------------------------------------

    async def _tick_repeatedly(self, check_interval: float) -> None:
        while True:
            try:
                await self.tick()
            except ConsumerUnresponsiveError as error:
                _log.warning("broker not responding, rules not evaluated", error=str(error))
            await sleep_aligned(check_interval)

    async def tick(self) -> None:
        """Evaluate every rule for every live sandbox, as of the moment up to which all events were read."""
        now = await self._evaluation_time()
        for partition in list(self._follower.partitions.values()):
            await self._check(partition, now)
        if now is not None and self._follower.partitions:
            gauges.measure(self._meters, [partition.herd for partition in self._follower.partitions.values()], now.at)

    async def _begin(self, partition: Partition) -> None:
        """Take the actions that became due while no replica watched this partition."""
        await self._check(partition, await self._evaluation_time())

    async def _check(self, partition: Partition, now: _EvaluationTime | None) -> None:
        if now is None or self._watching_since is None or partition.is_late:
            return
        with suppress(LeaseLostError):  # the partition notices it itself
            await partition.check(now.at, self._watching_since, all_read=now.all_read)

    async def _evaluation_time(self) -> _EvaluationTime | None:
        """The time for which rules can be evaluated; None while new events are not read."""
        position = self._follower.position
        try:
            bounds = await self._follower.reader.bounds()
        except ConsumerUnresponsiveError:
            self._reconnects = -1  # while the stream is unavailable, workers can't publish either
            raise
        self._record_return(bounds)
        partitions = self._follower.partitions.values()
        if position is None or not partitions or self._follower.reader.problem() is not None:
            return None
        last_read = min(position, *(partition.herd.position for partition in partitions))
        self._meters.set("sandherd_monitor_lag_messages", max(0, bounds.last - last_read))
        if position >= bounds.last:
            return _EvaluationTime(bounds.requested_at, all_read=True)
        return _EvaluationTime(self._follower.read_at, all_read=False) if self._follower.read_at is not None else None

    def _record_return(self, bounds: StreamBounds) -> None:
        """Record the time of a start, a reconnect, or the return of the stream.

        Silence of a worker counts only from then on. The time is recorded even without a partition: a partition that is
        taken over later was watched by another replica all the time.
        """
        if self._reconnects != self._bus.reconnects:
            self._reconnects = self._bus.reconnects
            self._watching_since = bounds.requested_at

    # --- the model ---------------------------------------------------------------------------------------------

    async def _assess(self) -> None:
        """Request the assessment of soft findings, if there is a model."""
        if self._assessor is None:
            await asyncio.Event().wait()
        else:
            await self._assessor.run(self._is_allowance_spent, self._publish_assessment)

    def _is_allowance_spent(self) -> bool:
        assert self._assessor is not None
        now = self._follower.read_at or datetime.now(UTC)
        tokens = self._assessor.tokens_a_day
        partitions = self._follower.partitions.values()
        return not partitions or any(partition.herd.allowance.is_spent(tokens, now) for partition in partitions)

    async def _publish_assessment(self, suspicion: Suspicion, assessment: Assessment) -> None:
        partition = self._follower.partitions.get(partition_of(*suspicion.key, self._count))
        if partition is not None:
            with suppress(LeaseLostError):  # the partition notices it itself
                await partition.publish_assessment(suspicion, assessment)
