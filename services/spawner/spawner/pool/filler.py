"""Keeps the pool filled, on the replica that holds the sweep's lease: starts what is missing, replaces what died."""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from typing import Final

from sandherd.bus.lease import Lease, LeaseLostError
from sandherd.contracts.names import new_name
from sandherd.telemetry import logs
from spawner.live import Live
from spawner.pool import decisions
from spawner.pool.decisions import Kind
from spawner.pool.record import WarmRecord, WarmState
from spawner.records.store import Held
from spawner.runtimes.contract import Runtime, RuntimeFailedError, WarmPlan
from spawner.sandboxes.keeper import FOR_NOW
from spawner.sandboxes.runtimes import answered

PREFIX: Final = "wrm"
_CLAIM_GRACE: Final = 60.0
"""A claim whose sandbox was not written down by then is nobody's: whoever made it has died, or its task was ended."""
_FREE: Final = (WarmState.REQUESTED, WarmState.READY)
_log: Final = logs.get("pool")


class Filler:
    """One pass after the other, at once when one was claimed. Intent first: the record, then the runtime is asked."""

    def __init__(
        self, live: Live, lease: Lease, runtimes: Mapping[str, Runtime], kinds: tuple[Kind, ...], *, max_age: float
    ) -> None:
        self._live = live
        self._lease = lease
        self._runtimes = runtimes
        self._kinds = tuple(
            kind for kind in kinds if kind.runtime in runtimes and runtimes[kind.runtime].capabilities.can_prepare
        )
        self._max_age = max_age
        self._wake = asyncio.Event()
        live.pool_index.on_change(lambda _key, record: self._changed(record))

    async def run(self, interval: float, timeout: float) -> None:
        """Until cancelled. `timeout` is how long a runtime is waited for, in seconds."""
        await asyncio.gather(self._live.pool_index.complete.wait(), self._live.sandbox_index.complete.wait())
        while True:
            if not self._lease.held:
                self._live.meters.forget("sandherd_warm_sandboxes")  # another replica shows them now
            await self._lease.wait_held()
            self._wake.clear()
            try:
                await self.fill(timeout)
            except LeaseLostError as error:
                _log.info("left to another", lease=str(error))
            except FOR_NOW as error:
                _log.warning("not filled", error=repr(error))
            with suppress(TimeoutError):
                async with asyncio.timeout(interval):
                    await self._wake.wait()

    async def fill(self, timeout: float) -> None:
        """One pass. Raises `LeaseLostError`, and what keeps it from its end for now."""
        for record in self._live.pool_index.views():
            self._lease.check()
            await self._tend(record, timeout)
        found = decisions.needs(self._kinds, self._live.pool_index.views(), self._live.now(), self._max_age)
        for unit in found.drop:
            await self._drop(unit, timeout)
        for kind in found.make:
            self._lease.check()
            held, _ = await self._live.pool.create(decisions.requested(new_name(PREFIX), kind, self._live.now()))
            await self._prepare(held, timeout)
        self._measure()

    async def _tend(self, record: WarmRecord, timeout: float) -> None:
        if record.state is WarmState.CLAIMED:
            await self._settle(record, timeout)
            return
        runtime = self._runtimes.get(record.runtime)
        held = await self._live.pool.load(record.unit)
        if held is None or runtime is None:
            return
        if held.record.state is WarmState.REQUESTED:
            await self._prepare(held, timeout)
            return
        seen = await answered(runtime.look(record.unit), timeout, f"runtime {runtime.name}")
        if seen is None or not seen.alive:
            _log.warning("one of the pool has ended", unit=record.unit, end=str(seen and seen.end))
            await self._drop(record.unit, timeout)

    async def _prepare(self, held: Held[WarmRecord], timeout: float) -> None:
        record = held.record
        runtime = self._runtimes[record.runtime]
        self._lease.check()
        try:
            plan = WarmPlan(
                unit=record.unit, limits=record.limits, user_namespaces=record.user_namespaces, profile=record.profile
            )
            await answered(runtime.prepare(plan), timeout, f"runtime {runtime.name}")
        except RuntimeFailedError as error:
            _log.warning("one of the pool could not be started", unit=record.unit, error=str(error))
            await self._drop(record.unit, timeout)
            return
        self._lease.check()
        await self._live.pool.replace(held, decisions.ready(record))

    async def _settle(self, record: WarmRecord, timeout: float) -> None:
        """One that was claimed is its sandbox's, once that is written down; one that nobody came for is removed.

        It is not given back: whoever claimed it may only be slow, and none may ever be two's.
        """
        held = await self._live.sandboxes.load(record.claimed_by or "")
        if held is not None and held.record.alias == record.unit:
            mine = await self._live.pool.load(record.unit)
            if mine is not None:
                await self._live.pool.remove(mine)
        elif held is not None or decisions.stale(record, self._live.now(), _CLAIM_GRACE):
            await self._drop(record.unit, timeout, WarmState.CLAIMED)

    async def _drop(self, unit: str, timeout: float, *states: WarmState) -> None:
        """First the record, so that nobody claims it; what then is left is an orphan, which the sweep removes."""
        self._lease.check()
        held = await self._live.pool.load(unit)
        if held is None or held.record.state not in (states or _FREE) or not await self._live.pool.remove(held):
            return
        runtime = self._runtimes.get(held.record.runtime)
        if runtime:
            await answered(runtime.remove(unit), timeout, f"runtime {runtime.name}")

    def _changed(self, record: WarmRecord) -> None:
        if record.state is WarmState.CLAIMED:
            self._wake.set()

    def _measure(self) -> None:
        states = [record.state for record in self._live.pool_index.views()]
        for state in WarmState:
            self._live.meters.set("sandherd_warm_sandboxes", states.count(state), state=state)
