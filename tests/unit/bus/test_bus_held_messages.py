"""The limit of what a consumer holds in memory: of messages, and of bytes."""

import asyncio
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest

from sandherd.bus.connection import Bus
from sandherd.bus.consumers import held_messages
from sandherd.bus.consumers.consumer import SourceLimits
from sandherd.bus.consumers.held_messages import HeldMessages
from sandherd.bus.consumers.outcomes import DONE, Delivery, Outcome
from sandherd.contracts.streams import BY_CONSUMER

NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)


class Client:
    """A connection that publishes nothing."""

    async def publish(self, _subject: str, _payload: bytes) -> None:
        return

    async def publish_each(self, _subjects: list[str], _payload: bytes) -> None:
        return


def message(number: int, size: int) -> Any:
    """A message of one sandbox."""
    return SimpleNamespace(
        subject="sandherd.v1.event.default.sbx-1.agent.message_sent",
        data=b"x" * size,
        number=number,
        reply="ack",
    )


@pytest.mark.parametrize(("count", "size", "expected"), [(100, 10, 100), (1000, 952, 100)], ids=["messages", "bytes"])
async def test_full_queue_pulls_no_more(count: int, size: int, expected: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """`accept` returns, so that more is pulled, only after a held message was handled. Small ones take memory, too."""
    monkeypatch.setattr(held_messages, "_MAX_MESSAGES", count)
    monkeypatch.setattr(held_messages, "_MAX_BYTES", 300_000)
    monkeypatch.setattr(held_messages, "read_delivery", _read)
    bus = cast("Bus", SimpleNamespace(client=Client(), connected=False))

    async def handle(_delivery: Delivery) -> Outcome:
        return DONE

    async with HeldMessages.open(bus, BY_CONSUMER["message-relay-agents"], None, SourceLimits()) as held:
        for number in range(1, expected):
            await held.accept([message(number, size)])
        full = asyncio.ensure_future(held.accept([message(expected, size)]))
        await asyncio.sleep(0)
        assert (full.done(), len(held._items)) == (False, expected)
        await held.handle_one(await held.next(), handle)
        await full
        assert len(held._items) == expected - 1


def _read(msg: Any) -> Delivery:
    """A redelivery, which is queued at any rate."""
    return Delivery(msg.subject, msg.data, "EVENTS", msg.number, 2, NOON + timedelta(seconds=msg.number))
