"""The watch: reads the stream, keeps the herd, asks the rules, and acts. Only the holder of its lease does."""

import asyncio
from collections.abc import Sequence
from datetime import datetime
from typing import Final

import nats.errors
import nats.js.errors

from monitor import guardian, measuring
from monitor.acting import Acting
from monitor.following import Follower, Reached
from monitor.herd import Herd
from monitor.keeping import Keeping
from monitor.reading import read
from monitor.records import recorded_of
from monitor.rules import Finding, Limits, flooding, judge, stands
from monitor.state import Key, Watched
from sandherd.bus.connection import Bus
from sandherd.bus.consuming import Delivery
from sandherd.bus.lease import Lease, LeaseLostError
from sandherd.bus.pulling import REBIND, DeafError
from sandherd.bus.together import together
from sandherd.contracts.states import SANDBOX_ENDED
from sandherd.telemetry import logs
from sandherd.telemetry.meters import Meters

SNAPSHOT_EVERY: Final = 15.0
_NEAR: Final = 2000
"""So many events before the end of the stream, its past counts as read: a busy stream has no end."""
_LEASE_CHECKED_EVERY: Final = 0.5
_UNANSWERED: Final = (nats.js.errors.Error, nats.errors.Error, asyncio.TimeoutError, OSError)
_UNREADABLE: Final = (*_UNANSWERED, ValueError)
_log: Final = logs.get("watch")


class Watch:
    """One holding of the lease: from a snapshot, through the stream, until the lease is another's."""

    def __init__(
        self, bus: Bus, lease: Lease, limits: Limits, *, acting: Acting, follower: Follower, meters: Meters
    ) -> None:
        self._bus = bus
        self._lease = lease
        self._limits = limits
        self._acting = acting
        self._follower = follower
        self._meters = meters
        self._keeping = Keeping(bus)
        self._herd = Herd()
        self._read_at: datetime | None = None
        self._watching_since: datetime | None = None
        self._reconnects = -1
        self._caught_up = False
        self._touched: set[Key] = set()
        self._turn = asyncio.Lock()

    async def run(self, check_interval: float) -> None:
        """Watch until the lease is lost."""
        try:
            self._herd = await self._restored()
            await together(self._follow(), self._tick_on(check_interval), self._save_on(), self._end_with_lease())
        except LeaseLostError:
            _log.warning("another watches now")
        finally:
            await self._leave()

    async def _restored(self) -> Herd:
        """The herd of the snapshot, as soon as it can be read: while a stream has no leader, nobody answers for it.

        Raises `LeaseLostError`.
        """
        while True:
            self._lease.check()
            try:
                return await self._keeping.restore()
            except _UNANSWERED as error:
                _log.warning("the snapshot can't be read yet", error=repr(error))
                await asyncio.sleep(REBIND)

    async def _leave(self) -> None:
        """Keep what was folded last, so that the next holder need not read it again."""
        if self._lease.held and self._bus.connected and self._herd.position > self._keeping.position:
            await self._keeping.save(self._herd, self._lease.fence)
        await self._follower.stop()
        measuring.leave(self._meters)

    async def _end_with_lease(self) -> None:
        while True:
            self._lease.check()
            await asyncio.sleep(_LEASE_CHECKED_EVERY)

    # --- reading -----------------------------------------------------------------------------------------------

    async def _follow(self) -> None:
        while True:
            try:
                await self._follower.start(self._herd.position)
                while True:
                    self._take(await self._follower.next_batch())
                    await self._act_on_touched()
            except DeafError as error:
                self._caught_up = False
                _log.warning("reading anew from where the herd stands", position=self._herd.position, error=str(error))
                await asyncio.sleep(REBIND)

    def _take(self, batch: Sequence[Delivery]) -> None:
        self._touched.clear()
        for event in batch:
            seen = read(event.subject, event.data, event.stream_sequence, event.at)
            state = self._herd.take(seen) if seen is not None else None
            if state is not None and self._is_urgent(state):
                self._touched.add(state.key)
            self._herd.position, self._read_at = event.stream_sequence, event.at

    def _is_urgent(self, state: Watched) -> bool:
        """Whether there may be something to do now, and not only at the next tick."""
        told = guardian.outcome(state, self._limits) is not None or guardian.looping(state, self._limits) is not None
        return told or flooding(state, state.last_sign_at, self._limits) is not None

    async def _act_on_touched(self) -> None:
        if not self._caught_up or self._read_at is None:
            return
        for key in list(self._touched):
            await self._guard(key, self._read_at)
            if self._watching_since is not None:
                async with self._turn:
                    await self._judge(key, self._read_at, self._watching_since)

    # --- judging -----------------------------------------------------------------------------------------------

    async def _tick_on(self, check_interval: float) -> None:
        while True:
            self._lease.check()
            try:
                await self.tick()
            except DeafError as error:
                _log.warning("nothing is judged while the broker is silent", error=str(error))
            await asyncio.sleep(check_interval)

    async def tick(self) -> None:
        """Ask every rule about every live sandbox, as of the moment up to which all events were read."""
        now = await self._now()
        if now is None or self._watching_since is None:
            return
        for key in list(self._herd.live):
            await self._guard(key, now)
            async with self._turn:
                await self._judge(key, now, self._watching_since)
        measuring.measure(self._meters, self._herd, now)

    async def _now(self) -> datetime | None:
        """The broker's time until which nothing can have been missed; None while the past is still being read."""
        if self._follower.problem() is not None:
            return None
        reached = await self._follower.reached(self._herd.position)
        self._meters.set("sandherd_monitor_lag_messages", reached.left)
        self._note_return(reached)
        self._caught_up = self._caught_up or reached.left <= _NEAR
        if not self._caught_up:
            return None
        return reached.asked_at if reached.left == 0 else self._read_at

    def _note_return(self, reached: Reached) -> None:
        """After a start, and whenever the broker was away: from here on, silence means something again."""
        if self._reconnects != self._bus.reconnects:
            self._reconnects = self._bus.reconnects
            self._watching_since = reached.asked_at

    async def _judge(self, key: Key, now: datetime, watching_since: datetime) -> None:
        state = self._herd.live.get(key)
        finding = judge(state, now, self._limits, watching_since) if state is not None else None
        if state is None or finding is None or not await self._holds(state, finding, now):
            return
        self._lease.check()
        _log.info("found", rule=finding.rule, project=state.project, sandbox=state.sandbox, age=finding.age(now))
        self._herd.did(key, await self._acting.end(state, finding, now))
        self._meters.count("sandherd_findings_total", rule=finding.rule)

    async def _holds(self, state: Watched, finding: Finding, now: datetime) -> bool:
        """Whether by the spawner's record, too, there is something to end. If that can't be read, not for now."""
        try:
            recorded = await recorded_of(self._bus, state.project, state.sandbox)
        except _UNREADABLE as error:
            _log.warning("the sandbox's record can't be read", sandbox=state.sandbox, error=repr(error))
            return False
        if recorded is None or recorded.state in SANDBOX_ENDED:
            self._herd.forget(state.key)
        return recorded is not None and stands(finding, recorded, now)

    # --- steering ----------------------------------------------------------------------------------------------

    async def _guard(self, key: Key, now: datetime) -> None:
        async with self._turn:
            await self._tell_outcome(key, now)
            await self._steer(key, now)

    async def _steer(self, key: Key, now: datetime) -> None:
        state = self._herd.live.get(key)
        if state is None:
            return
        nudge = guardian.steer(state, now, self._limits, self._bus.ids)
        if nudge is not None:
            self._lease.check()
            _log.info("nudge", sandbox=state.sandbox, tool=nudge.streak.tool, repeats=nudge.streak.count)
            self._herd.did(key, await self._acting.nudge(state, nudge, now))
            self._meters.count("sandherd_steerings_total", rule=nudge.steering.rule)
        elif (steering := guardian.to_send_again(state, now)) is not None:
            self._lease.check()
            await self._acting.send(state, steering, now)
            self._herd.put(guardian.sent_again(state, now))

    async def _tell_outcome(self, key: Key, now: datetime) -> None:
        state = self._herd.live.get(key)
        outcome = guardian.outcome(state, self._limits) if state is not None else None
        if state is None or state.steering is None or outcome is None:
            return
        self._lease.check()
        self._herd.did(key, await self._acting.tell(state, state.steering, outcome, now))
        self._meters.count("sandherd_interventions_total", rule=state.steering.rule, outcome=outcome)

    # --- keeping -----------------------------------------------------------------------------------------------

    async def _save_on(self) -> None:
        while True:
            await asyncio.sleep(SNAPSHOT_EVERY)
            self._lease.check()
            if self._herd.position > self._keeping.position:
                await self._keeping.save(self._herd, self._lease.fence)
