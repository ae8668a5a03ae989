"""Claims warm sandboxes from the pool by compare-and-set, so that none is claimed twice."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from sandherd.contracts.specs import SandboxLimits
from spawner.live_state import LiveState
from spawner.pool import pool_decisions
from spawner.pool.worker_code import worker_code
from spawner.records.base_record import StoreUnavailableError
from spawner.sandboxes import sandbox_transitions as of_sandbox
from spawner.sandboxes.sandbox_record import SandboxRecord, WorkerKey
from spawner.spec_resolution import SpawnPolicy, expiry, same_as_profile
from spawner.tasks.task_record import TaskRecord


@dataclass(frozen=True)
class WarmClaim:
    """A claimed unit, and the public key of its worker if that is known."""

    unit: str
    public_key: str | None = None


METRIC: Final = "sandherd_warm_claims_total"


class Pool:
    """The warm sandboxes that can be claimed. If none matches, the caller starts a cold sandbox without waiting."""

    def __init__(self, live: LiveState, menu: SpawnPolicy, credential_life: float) -> None:
        """`credential_life` is the lifetime of a worker's credential, in seconds."""
        self._live = live
        self._menu = menu
        self._credential_life = credential_life
        self._worker = worker_code() if pool_decisions.kinds(menu) else ""
        self.kinds: Final = pool_decisions.kinds(menu, self._worker)

    async def new_record(self, task: TaskRecord, sandbox: str, now: datetime) -> SandboxRecord:
        """A new record for the sandbox of a task's attempt. It names a warm sandbox of the pool if one matches."""
        record = of_sandbox.requested(task, sandbox, now, expires_at=expiry(task.spec, self._menu, now))
        mounted = task.checkout is not None and task.checkout.bundle is None
        if task.defaults.image is not None or mounted:  # a warm sandbox has the runtime's image, and no mirror
            return record
        return await self.assign(record, now)

    async def assign(self, record: SandboxRecord, now: datetime) -> SandboxRecord:
        """The record with a matching warm sandbox from the pool; unchanged if there is none.

        The key of its worker is recorded before a credential is issued, so that it can be revoked.
        """
        claim = await self._claim(record.key, record.profile, record.runtime, record.limits, now)
        if claim is None:
            return record
        assigned = record.model_copy(update={"unit": claim.unit})
        if claim.public_key is None:
            return assigned
        expires_at = now + timedelta(seconds=self._credential_life + 1)
        return of_sandbox.granted(assigned, WorkerKey(public_key=claim.public_key, expires_at=expires_at), now)

    async def _claim(
        self, key: str, profile: str | None, runtime: str, limits: SandboxLimits, now: datetime
    ) -> WarmClaim | None:
        """A unit for the sandbox with this key, or None. Repeated for the same sandbox, it returns the same unit."""
        if not self.kinds or profile is None or not same_as_profile(limits, profile, self._menu):
            return None
        records = {unit: known.view for unit, known in self._live.pool_index.items()}
        already_claimed = next((record for record in records.values() if record.claimed_by == key), None)
        if already_claimed:
            return WarmClaim(already_claimed.unit, already_claimed.public_key)
        try:
            units = pool_decisions.claimable(records, profile, runtime, limits, self._worker)
            return await self._claim_first(units, key, now)
        except StoreUnavailableError:
            # A claim that succeeded without a reply is found and removed by the filler.
            return None

    async def _claim_first(self, units: list[str], key: str, now: datetime) -> WarmClaim | None:
        for unit in units:
            held = await self._live.pool.newest(unit)
            claimed = pool_decisions.claimed(held.record, key, now) if held else None
            if held is None or claimed is None or claimed is held.record:
                continue
            if await self._live.pool.replace(held, claimed):
                self._count("claimed")
                return WarmClaim(unit, claimed.public_key)
            self._count("lost")
        self._count("empty")
        return None

    def _count(self, outcome: str) -> None:
        self._live.meters.count(METRIC, outcome=outcome)
