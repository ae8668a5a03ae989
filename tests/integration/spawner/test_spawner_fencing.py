"""A former leader can't write or call: by its own clock, by the record's token, and by the record's revision."""

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from sandherd.bus.lease import LeaseLostError
from sandherd.contracts.specs import SandboxLimits, SandboxSpec
from sandherd.contracts.states import SandboxState
from sandherd.contracts.subjects import Principal
from sandherd.stack.broker import Broker
from sandherd.telemetry.meters import Meters
from spawner.live_state import LiveState
from spawner.records.store import StoredRecord
from spawner.sandboxes import sandbox_transitions
from spawner.sandboxes.fenced_writes import FencedWriter
from spawner.sandboxes.runtime_calls import RuntimeCaller
from spawner.sandboxes.sandbox_record import SandboxRecord

NOW = datetime(2026, 11, 21, tzinfo=UTC)


@dataclass
class Lease:
    """A lease; the test sets whether it is held."""

    fence: int
    held: bool = True

    def check(self) -> None:
        if not self.held:
            raise LeaseLostError("spawner.sweep")


def stopping(record: SandboxRecord) -> SandboxRecord:
    return sandbox_transitions.stopping(record, "because", NOW)


async def made(live: LiveState) -> StoredRecord[SandboxRecord]:
    record = SandboxRecord(
        project="p1", sandbox="sbx-1", runtime="process", limits=SandboxLimits(), spec=SandboxSpec(), requested_at=NOW
    )
    held, ours = await live.sandboxes.create(record)
    assert ours
    return held


async def test_decision_is_written_only_over_the_record_it_was_made_from(herd: Broker) -> None:
    """A record that has changed since the decision is not overwritten; the decision is made again."""
    async with herd.bus(Principal.SPAWNER) as bus:
        live = LiveState(bus, Meters(CollectorRegistry()))
        read = await made(live)
        leading = FencedWriter(live, Lease(5))
        await live.change_sandbox("p1.sbx-1", lambda record: replace_reason(record, "changed"))
        assert not await leading.decide(read, stopping)
        fresh = await live.sandboxes.load("p1.sbx-1")
        assert fresh
        assert await leading.decide(fresh, stopping)
        after = await live.sandboxes.load("p1.sbx-1")
        assert after
        assert (after.record.state, after.record.led_by) == (SandboxState.STOPPING, 5)
        assert after.record.fence == read.revision
        assert after.record.outbox == ()


async def test_older_token_writes_nothing_over_a_newer_one(herd: Broker) -> None:
    """A record's newer token refuses a write, also a repeated one, even if the holder's clock shows no loss."""
    async with herd.bus(Principal.SPAWNER) as bus:
        live = LiveState(bus, Meters(CollectorRegistry()))
        read = await made(live)
        old, new = FencedWriter(live, Lease(5)), FencedWriter(live, Lease(9))
        assert await new.note("p1.sbx-1", lambda record: sandbox_transitions.spawned(record, "none", NOW))
        assert not await old.decide(read, stopping)
        with pytest.raises(LeaseLostError):
            await old.note("p1.sbx-1", stopping)
        fresh = await live.sandboxes.load("p1.sbx-1")
        assert fresh
        with pytest.raises(LeaseLostError):
            await old.decide(fresh, stopping)
        assert fresh.record.state is SandboxState.SPAWNING


async def test_nothing_is_written_or_called_without_the_lease(herd: Broker) -> None:
    """Without the lease nothing is written, and not even a runtime is called."""
    called: list[Any] = []

    async def call(runtime: Any) -> None:
        called.append(runtime)

    async with herd.bus(Principal.SPAWNER) as bus:
        live = LiveState(bus, Meters(CollectorRegistry()))
        read = await made(live)
        lease = Lease(5, held=False)
        leading, runtimes = FencedWriter(live, lease), RuntimeCaller({"process": object()}, lease, 1.0)  # type: ignore[dict-item]  # never used
        with pytest.raises(LeaseLostError):
            await runtimes.call(read.record, call)
        for write in (leading.decide(read, stopping), leading.note("p1.sbx-1", stopping)):
            with pytest.raises(LeaseLostError):
                await write
        assert not called
        assert await live.sandboxes.load("p1.sbx-1") == replace(read)


def replace_reason(record: SandboxRecord, reason: str) -> SandboxRecord:
    return record.model_copy(update={"reason": reason})
