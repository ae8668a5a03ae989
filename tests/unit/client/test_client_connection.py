"""A client's connection, with a broker's connection that the test replaces."""

import asyncio
from contextlib import suppress
from typing import Any

import pytest

from sandherd.client.connection import Connection
from sandherd.contracts.commands import CancelTask
from sandherd.contracts.envelope import Envelope
from sandherd.contracts.requests import ListLiveTasks


class OneBus:
    """Replies to nothing, and records what is published."""

    def __init__(self) -> None:
        self.published: list[tuple[bytes, str]] = []
        self.requested = asyncio.Event()
        self.ended = 0

    async def ask(self, request: Any, project: str, *, timeout: float) -> Any:
        """Swallow the first cancellation, as `asyncio.wait_for` may in nats-py."""
        try:
            with suppress(asyncio.CancelledError):
                self.requested.set()
                await asyncio.Event().wait()
            await asyncio.Event().wait()
        finally:
            self.ended += 1

    async def publish_stored(self, subject: str, payload: bytes, *, msg_id: str) -> None:
        self.published.append((payload, msg_id))


def connection(bus: Any) -> Connection:
    return Connection.over(bus, "p1", issuer="/sandherd/client")


async def test_cancelled_request_has_ended() -> None:
    """A request that swallows a cancellation is cancelled again, and nothing runs on after its caller's end."""
    bus = OneBus()
    request = asyncio.ensure_future(connection(bus).request(ListLiveTasks(), timeout=60))
    await bus.requested.wait()
    request.cancel()
    with pytest.raises(asyncio.CancelledError):
        await request
    assert bus.ended == 1


async def test_command_is_written_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The document that is checked is the one that is published."""
    written: list[bytes] = []
    to_json = Envelope.to_json

    def recorded(envelope: Envelope[Any]) -> bytes:
        written.append(to_json(envelope))
        return written[-1]

    monkeypatch.setattr(Envelope, "to_json", recorded)
    bus = OneBus()
    envelope = await connection(bus).command(CancelTask(task="task-1"), "task-1")
    assert bus.published == [(written[0], str(envelope.id))]
    assert len(written) == 1
