"""The pool is refilled after the sandboxes that were claimed from it have started."""

import asyncio
from datetime import UTC, datetime
from typing import Any, cast

import pytest
from prometheus_client import CollectorRegistry

from sandherd.contracts.specs import SandboxLimits
from sandherd.contracts.states import SandboxState
from sandherd.telemetry.meters import Meters
from spawner.live_state import LiveState
from spawner.pool import filler
from spawner.pool.filler import Filler
from spawner.pool.pool_decisions import PoolProfile, claimed, ready, requested
from spawner.records.store import StoredRecord
from spawner.sandboxes.sandbox_record import SandboxRecord

NOW = datetime(2026, 11, 21, tzinfo=UTC)
KIND = PoolProfile("quick", "process", SandboxLimits(), 1)


def sandbox(state: SandboxState) -> SandboxRecord:
    return SandboxRecord(
        project="p1", sandbox="sbx-1", runtime="process", limits=SandboxLimits(), requested_at=NOW, state=state
    )


@pytest.fixture
def live() -> LiveState:
    return LiveState(cast("Any", None), Meters(CollectorRegistry()))


@pytest.fixture
def refill(live: LiveState) -> Filler:
    """A filler that knows of one claim."""
    made = Filler(live, cast("Any", None), {}, (), max_age=60)
    record = claimed(ready(requested("wrm-1", KIND, NOW), None), "p1.sbx-1", NOW)
    live.pool_index.update(StoredRecord(record, 1))
    return made


@pytest.mark.parametrize("state", [SandboxState.RUNNING, SandboxState.STOPPING, SandboxState.FAILED])
async def test_refill_waits_until_the_claimed_sandbox_has_started(
    live: LiveState, refill: Filler, state: SandboxState
) -> None:
    """There is no refill while the claimed sandbox is requested or spawning; there is one once it runs or has ended."""
    waiting = asyncio.create_task(refill._wait_for_claimed_starts())
    for revision, before in enumerate((SandboxState.REQUESTED, SandboxState.SPAWNING), 1):
        live.sandbox_index.update(StoredRecord(sandbox(before), revision))
        await asyncio.sleep(0)
        assert not waiting.done()
    live.sandbox_index.update(StoredRecord(sandbox(state), 3))
    await waiting


async def test_refill_waits_for_no_claim_forever(refill: Filler, monkeypatch: pytest.MonkeyPatch) -> None:
    """A claimer may have crashed; the same claim does not delay a second pass."""
    monkeypatch.setattr(filler, "_START_SECONDS", 0.0)
    await refill._wait_for_claimed_starts()
    monkeypatch.setattr(filler, "_START_SECONDS", 3600.0)
    await refill._wait_for_claimed_starts()
