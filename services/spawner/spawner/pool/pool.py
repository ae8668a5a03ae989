"""Claiming a sandbox of the pool: a compare-and-set, so that none is ever two's."""

from datetime import datetime
from typing import Final

from sandherd.contracts.specs import Limits
from spawner.live import Live
from spawner.pool import decisions
from spawner.records.unavailable import StoreUnavailableError
from spawner.resolving import Menu, expiry, same_as_profile
from spawner.sandboxes import decisions as of_sandbox
from spawner.sandboxes.record import SandboxRecord
from spawner.tasks.record import TaskRecord

METRIC: Final = "sandherd_warm_claims_total"


class Pool:
    """What waits to be claimed. Whoever finds nothing starts cold, and waits for nobody."""

    def __init__(self, live: Live, menu: Menu) -> None:
        self._live = live
        self._menu = menu
        self._kept = bool(decisions.kinds(menu))

    async def intend(self, task: TaskRecord, sandbox: str, now: datetime) -> SandboxRecord:
        """The record of the sandbox of a task's attempt, of the pool if one of its kind waits there."""
        unit = await self.claim(f"{task.project}.{sandbox}", task.spec.profile, task.runtime, task.limits, now)
        return of_sandbox.requested(task, sandbox, now, expires_at=expiry(task.spec, self._menu, now), unit=unit)

    async def claim(self, key: str, profile: str | None, runtime: str, limits: Limits, now: datetime) -> str | None:
        """A unit for the sandbox of this key, or None. Claimed twice for the same sandbox, it is the same."""
        if not self._kept or profile is None or not same_as_profile(limits, profile, self._menu):
            return None
        records = {unit: known.view for unit, known in self._live.pool_index.items()}
        ours = next((unit for unit, record in records.items() if record.claimed_by == key), None)
        if ours:
            return ours
        try:
            return await self._claim_first(decisions.claimable(records, profile, runtime, limits), key, now)
        except StoreUnavailableError:
            # A claim that was taken without an answer is found by the filler, which removes it.
            return None

    async def _claim_first(self, units: list[str], key: str, now: datetime) -> str | None:
        for unit in units:
            held = await self._live.pool.load(unit)
            claimed = decisions.claimed(held.record, key, now) if held else None
            if held is None or claimed is None or claimed is held.record:
                continue
            if await self._live.pool.replace(held, claimed):
                self._count("claimed")
                return unit
            self._count("lost")
        self._count("empty")
        return None

    def _count(self, outcome: str) -> None:
        self._live.meters.count(METRIC, outcome=outcome)
