"""Claims warm sandboxes from the pool by compare-and-set, so that none is claimed twice."""

from datetime import datetime
from typing import Final

from sandherd.contracts.specs import SandboxLimits
from spawner.live_state import LiveState
from spawner.pool import pool_decisions
from spawner.records.base_record import StoreUnavailableError
from spawner.sandboxes import sandbox_transitions as of_sandbox
from spawner.sandboxes.sandbox_record import SandboxRecord
from spawner.spec_resolution import SpawnPolicy, expiry, same_as_profile
from spawner.tasks.task_record import TaskRecord

METRIC: Final = "sandherd_warm_claims_total"


class Pool:
    """The claimable warm sandboxes. Without a match a sandbox is started cold, without waiting."""

    def __init__(self, live: LiveState, menu: SpawnPolicy) -> None:
        self._live = live
        self._menu = menu
        self._has_profiles = bool(pool_decisions.kinds(menu))

    async def intend(self, task: TaskRecord, sandbox: str, now: datetime) -> SandboxRecord:
        """The record of the sandbox of a task's attempt, from the pool if it has a match."""
        unit = None
        mounted = task.checkout is not None and task.checkout.bundle is None
        if task.defaults.image is None and not mounted:  # a warm sandbox has the runtime's image, and no mirror
            unit = await self.claim(f"{task.project}.{sandbox}", task.spec.profile, task.runtime, task.limits, now)
        return of_sandbox.requested(task, sandbox, now, expires_at=expiry(task.spec, self._menu, now), unit=unit)

    async def claim(
        self, key: str, profile: str | None, runtime: str, limits: SandboxLimits, now: datetime
    ) -> str | None:
        """A unit for the sandbox with this key, or None. Repeated for the same sandbox, it returns the same unit."""
        if not self._has_profiles or profile is None or not same_as_profile(limits, profile, self._menu):
            return None
        records = {unit: known.view for unit, known in self._live.pool_index.items()}
        already_claimed = next((unit for unit, record in records.items() if record.claimed_by == key), None)
        if already_claimed:
            return already_claimed
        try:
            return await self._claim_first(pool_decisions.claimable(records, profile, runtime, limits), key, now)
        except StoreUnavailableError:
            # A claim that succeeded without a reply is found and removed by the filler.
            return None

    async def _claim_first(self, units: list[str], key: str, now: datetime) -> str | None:
        for unit in units:
            held = await self._live.pool.load(unit)
            claimed = pool_decisions.claimed(held.record, key, now) if held else None
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
