"""Fills the pool on the replica with the sweep lease: starts missing warm sandboxes, and replaces ended sandboxes."""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from typing import Final

from sandherd.bus.identity.keys import KeyKind, is_public_key
from sandherd.bus.lease import Lease, LeaseLostError
from sandherd.contracts.names import new_name
from sandherd.contracts.requests import SandboxView
from sandherd.contracts.states import SandboxState
from sandherd.telemetry import logs
from spawner.live_state import LiveState
from spawner.pool import pool_decisions
from spawner.pool.pool_decisions import PoolProfile
from spawner.pool.warm_record import WarmRecord, WarmState
from spawner.records.store import StoredRecord
from spawner.runtimes.contract import Runtime, RuntimeFailedError, WarmPlan
from spawner.sandboxes.reconciler import FOR_NOW
from spawner.sandboxes.runtime_calls import call_with_timeout

PREFIX: Final = "wrm"
_CLAIM_GRACE_SECONDS: Final = 60.0
"""Seconds after which a claim without a sandbox record is abandoned: the claimer crashed, or its task was ended."""
_STARTING: Final = (SandboxState.REQUESTED, SandboxState.SPAWNING)
_START_SECONDS: Final = 1.0
"""Maximum time to wait for claimed sandboxes to start before the pool is refilled."""
_UNCLAIMED: Final = (WarmState.REQUESTED, WarmState.READY)
_log: Final = logs.get("pool.filler")


class Filler:
    """Fills the pool periodically, and after a claim. It stores a warm sandbox's record before it calls the runtime.

    After a claim it waits for the claimed sandbox to start: creating a replacement at the same time would take the
    processors that the claimed sandbox needs.
    """

    def __init__(
        self,
        live: LiveState,
        lease: Lease,
        runtimes: Mapping[str, Runtime],
        kinds: tuple[PoolProfile, ...],
        *,
        max_age: float,
    ) -> None:
        self._live = live
        self._lease = lease
        self._runtimes = runtimes
        self._kinds = tuple(
            kind for kind in kinds if kind.runtime in runtimes and runtimes[kind.runtime].capabilities.can_prepare
        )
        self._max_age = max_age
        self._wake = asyncio.Event()
        self._starting: set[str] = set()
        self._start_ended = asyncio.Event()
        live.pool_index.on_change(lambda _key, record: self._on_pool_record(record))
        live.sandbox_index.on_change(self._on_sandbox)
        live.sandbox_index.on_removal(self._has_started)

    async def run(self, interval: float, timeout: float) -> None:
        """Run until cancelled. `timeout` of each runtime call is in seconds."""
        await asyncio.gather(self._live.pool_index.complete.wait(), self._live.sandbox_index.complete.wait())
        while True:
            if not self._lease.held:
                self._live.meters.hide("sandherd_warm_sandboxes")  # another replica exports this gauge now
            await self._lease.wait_held()
            self._wake.clear()
            await self._wait_for_claimed_starts()
            try:
                await self.fill(timeout)
            except LeaseLostError as error:
                _log.info("lease lost to another replica", lease=str(error))
            except FOR_NOW as error:
                _log.warning("pool not filled, retrying", error=repr(error))
            with suppress(TimeoutError):
                async with asyncio.timeout(interval):
                    await self._wake.wait()

    async def fill(self, timeout: float) -> None:
        """Fill the pool once. Raises `LeaseLostError`, and transient errors that prevent its completion."""
        for record in self._live.pool_index.views():
            self._lease.check()
            await self._check_record(record, timeout)
        needs = pool_decisions.needs(self._kinds, self._live.pool_index.views(), self._live.now(), self._max_age)
        for unit in needs.drop:
            await self._remove_unit(unit, timeout)
        for kind in needs.make:
            self._lease.check()
            held, _ = await self._live.pool.create(pool_decisions.requested(new_name(PREFIX), kind, self._live.now()))
            await self._start_unit(held, timeout)
        self._set_gauges()

    async def _check_record(self, record: WarmRecord, timeout: float) -> None:
        if record.state is WarmState.CLAIMED:
            await self._close_claim(record, timeout)
            return
        runtime = self._runtimes.get(record.runtime)
        held = await self._live.pool.load(record.unit)
        if held is None or runtime is None:
            return
        if held.record.state is WarmState.REQUESTED:
            await self._start_unit(held, timeout)
            return
        observed = await call_with_timeout(runtime.observe(record.unit), timeout, f"runtime {runtime.name}")
        if observed is None or not observed.alive:
            _log.warning("warm sandbox ended", unit=record.unit, end=str(observed and observed.end))
            await self._remove_unit(record.unit, timeout)

    async def _start_unit(self, held: StoredRecord[WarmRecord], timeout: float) -> None:
        record = held.record
        runtime = self._runtimes[record.runtime]
        self._lease.check()
        try:
            plan = WarmPlan(
                unit=record.unit, limits=record.limits, user_namespaces=record.user_namespaces, profile=record.profile
            )
            key = await call_with_timeout(runtime.prepare(plan), timeout, f"runtime {runtime.name}")
        except RuntimeFailedError as error:
            _log.warning("warm sandbox not started", unit=record.unit, error=str(error))
            await self._remove_unit(record.unit, timeout)
            return
        self._lease.check()
        await self._live.pool.replace(held, pool_decisions.ready(record, _valid_user_key(key)))

    async def _close_claim(self, record: WarmRecord, timeout: float) -> None:
        """Delete the pool's record of a claimed unit once a sandbox's record names the unit.

        If the claim was abandoned, remove the unit. It is not returned to the pool, because the claimer may only be
        slow, and no unit may serve two sandboxes.
        """
        held = await self._live.sandboxes.load(record.claimed_by or "")
        if held is not None and held.record.runtime_unit == record.unit:
            pool_record = await self._live.pool.load(record.unit)
            if pool_record is not None:
                await self._live.pool.remove(pool_record)
        elif held is not None or pool_decisions.stale(record, self._live.now(), _CLAIM_GRACE_SECONDS):
            await self._remove_unit(record.unit, timeout, WarmState.CLAIMED)

    async def _remove_unit(self, unit: str, timeout: float, *states: WarmState) -> None:
        """Remove a warm sandbox; its record first, so that it can't be claimed. After a failure the sweep removes it.

        Without `states`, the sandbox is only removed while it is not claimed.
        """
        self._lease.check()
        held = await self._live.pool.load(unit)
        if held is None or held.record.state not in (states or _UNCLAIMED) or not await self._live.pool.remove(held):
            return
        runtime = self._runtimes.get(held.record.runtime)
        if runtime:
            await call_with_timeout(runtime.remove(unit), timeout, f"runtime {runtime.name}")

    async def _wait_for_claimed_starts(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(_START_SECONDS):
                while self._starting:
                    self._start_ended.clear()
                    await self._start_ended.wait()
        self._starting.clear()

    def _on_pool_record(self, record: WarmRecord) -> None:
        if record.state is WarmState.CLAIMED:
            self._starting.add(record.claimed_by or "")
            self._wake.set()

    def _on_sandbox(self, key: str, view: SandboxView) -> None:
        if view.state not in _STARTING:
            self._has_started(key)

    def _has_started(self, key: str) -> None:
        self._starting.discard(key)
        self._start_ended.set()

    def _set_gauges(self) -> None:
        states = [record.state for record in self._live.pool_index.views()]
        for state in WarmState:
            self._live.meters.set("sandherd_warm_sandboxes", states.count(state), state=state)


def _valid_user_key(found: str | None) -> str | None:
    """The key that a runtime has returned; None if it is not a user key. A plugin's runtime may return any text."""
    return found if found and is_public_key(found, KeyKind.USER) else None
