"""Published events are removed from outboxes by the next write of their record that began after the publication."""

import asyncio
from datetime import UTC, datetime

import pytest

from sandherd.contracts.commands import SandboxLimits
from sandherd.contracts.events.sandbox import SandboxRunning
from spawner.records import outboxes
from spawner.records.outboxes import Outboxes
from spawner.sandboxes.sandbox_record import SandboxRecord

NOW = datetime(2026, 11, 20, tzinfo=UTC)


def record(events: int) -> SandboxRecord:
    empty = SandboxRecord(
        project="p1", sandbox="sbx-1", runtime="process", limits=SandboxLimits(), requested_at=NOW, attempt=1
    )
    return empty.with_events(NOW, *[SandboxRunning(runtime="process")] * events)


async def test_published_event_is_published_once_and_cleared_by_the_next_write() -> None:
    """Until that write the event is in the record, but not pending. After it the event is in no memory."""
    known, before = Outboxes(), record(2)
    known.add(before.key, known.pending(before)[:1])
    assert known.pending(before) == [before.outbox[1]]
    after = known.cleared(before.with_events(NOW, SandboxRunning(runtime="docker")))
    assert after.outbox[0] == before.outbox[1]
    assert len(after.outbox) == 2
    known.written(after)
    assert known.pending(before) == list(before.outbox), "the same text in a later record would be another event"


async def test_event_that_was_published_during_a_write_is_cleared_by_the_write_after_it() -> None:
    """A write that began before the publication stores the event again, and it is not published a second time."""
    known, before = Outboxes(), record(1)
    written = known.cleared(before)
    known.add(before.key, known.pending(before))
    known.written(written)
    assert known.pending(written) == []
    assert known.cleared(written).outbox == ()


async def test_record_that_is_not_written_again_becomes_due(monkeypatch: pytest.MonkeyPatch) -> None:
    """A record that was written or removed meanwhile does not become due."""
    monkeypatch.setattr(outboxes, "CLEAR_AFTER", 0.0)
    known, idle = Outboxes(), record(1)
    due = asyncio.create_task(known.next_due())
    removed = idle.model_copy(update={"sandbox": "sbx-2"})
    changed = idle.model_copy(update={"sandbox": "sbx-3"})
    for one in (removed, changed, idle):
        known.add(one.key, one.outbox)
    known.drop(removed.key)
    known.written(changed.without(frozenset(changed.outbox)))
    assert await due == idle.key
