"""Records that this process has written are changed without reading them, and no change of another is lost."""

from datetime import UTC, datetime
from functools import partial
from unittest.mock import AsyncMock

import pytest
from prometheus_client import CollectorRegistry

from sandherd.bus.connection import Bus
from sandherd.contracts.commands import SandboxLimits
from sandherd.contracts.subjects import Principal
from sandherd.stack.broker import Broker
from sandherd.telemetry.meters import Meters
from spawner.live_state import LiveState
from spawner.records.store import Store
from spawner.sandboxes.record import SandboxRecord

NOW = datetime(2026, 11, 20, tzinfo=UTC)
KEY = "p1.sbx-1"


def started(bus: Bus) -> Store[SandboxRecord]:
    """The store of a spawner whose watch has not delivered what others wrote."""
    return LiveState(bus, Meters(CollectorRegistry())).sandboxes


async def test_change_of_another_replica_is_not_lost(herd: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if this one does not know of it yet: the first try fails, and the next one is of what is stored."""
    async with herd.bus(Principal.SPAWNER) as bus:
        mine, other = started(bus), started(bus)
        await mine.create(
            SandboxRecord(project="p1", sandbox="sbx-1", runtime="process", limits=SandboxLimits(), requested_at=NOW)
        )
        load = AsyncMock(side_effect=partial(Store.load, mine))
        monkeypatch.setattr(mine, "load", load)
        await mine.change(KEY, lambda record, _: record.model_copy(update={"unit": "a"}))
        assert not load.called, "its own write is known"
        await other.change(KEY, lambda record, _: record.model_copy(update={"reason": "idle"}))
        held = await mine.change(KEY, lambda record, _: record.model_copy(update={"error": "e"}))
        assert held is not None
        assert (held.record.unit, held.record.reason, held.record.error) == ("a", "idle", "e")
        await other.change(KEY, lambda record, _: record.model_copy(update={"attempt": 7}))
        unchanged = await mine.change(KEY, lambda record, _: record)
        assert unchanged is not None
        assert unchanged.record.attempt == 7, "that nothing is to change is decided by what is stored"
