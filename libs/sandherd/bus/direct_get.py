"""Reads many messages of a stream with one request and without a consumer, by nats-server's batched direct get."""

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import nats.errors
from nats.aio.msg import Msg

from sandherd.bus.connection import Bus
from sandherd.contracts.headers import SEQUENCE_HEADER, STORED_AT, STORED_SUBJECT

_TIMEOUT_SECONDS: Final = 2.0
_NO_MESSAGE: Final = "404"
_END_OF_BATCH: Final = "204"
_NO_RESPONDERS: Final = "503"


@dataclass(frozen=True)
class StoredMessage:
    """A message as stored in a stream."""

    sequence: int
    subject: str
    at: datetime
    headers: dict[str, str]
    data: bytes


async def read_batch(
    bus: Bus, stream: str, subject: str, *, first: int, limit: int, max_bytes: int
) -> list[StoredMessage]:
    """Up to `limit` messages of a subject from sequence `first` on, in order, and up to `max_bytes` in total.

    The first message is always returned, even if it is larger than `max_bytes`.

    Raises nats-py's errors, and `TimeoutError` if the next message does not arrive within 2 s.
    """
    return await _request_batch(
        bus, stream, {"seq": max(first, 1), "next_by_subj": subject, "batch": limit, "max_bytes": max_bytes}
    )


async def first_since(bus: Bus, stream: str, subject: str, at: datetime) -> int | None:
    """The sequence number of the first message of a subject that was stored at `at` or later. None if there is none.

    Raises as `read_batch` does.
    """
    start = at.astimezone(UTC).isoformat()
    messages = await _request_batch(bus, stream, {"start_time": start, "next_by_subj": subject, "batch": 1})
    return messages[0].sequence if messages else None


async def _request_batch(bus: Bus, stream: str, request: dict[str, Any]) -> list[StoredMessage]:
    inbox = bus.client.new_inbox()
    subscription = await bus.client.subscribe(inbox)
    try:
        await bus.client.publish(f"{bus.api}.DIRECT.GET.{stream}", json.dumps(request).encode(), inbox)
        return await _collect(subscription)
    finally:
        if not bus.closed:
            await subscription.unsubscribe()


async def _collect(subscription: Any) -> list[StoredMessage]:
    messages: list[StoredMessage] = []
    while True:
        msg: Msg = await subscription.next_msg(timeout=_TIMEOUT_SECONDS)
        headers = msg.headers or {}
        status = headers.get("Status") if SEQUENCE_HEADER not in headers else None
        if status in {_NO_MESSAGE, _END_OF_BATCH}:
            return messages
        if status == _NO_RESPONDERS:
            raise nats.errors.NoRespondersError
        if status is not None:
            raise nats.errors.Error(f"{status} {headers.get('Description', '')}")
        messages.append(read_stored(headers, msg.data))


def read_stored(headers: dict[str, str], data: bytes) -> StoredMessage:
    """Read a message from a direct get, or a message that its stream has republished.

    Raises `KeyError` or `ValueError`.
    """
    return StoredMessage(
        sequence=int(headers[SEQUENCE_HEADER]),
        subject=headers[STORED_SUBJECT],
        at=datetime.fromisoformat(_to_microseconds(headers[STORED_AT])),
        headers=headers,
        data=data,
    )


def _to_microseconds(stamp: str) -> str:
    """A time of the broker (RFC 3339, UTC), with six digits of the second's fraction instead of up to nine."""
    seconds, _, fraction = stamp.partition(".")
    digits = fraction.rstrip("Z")
    return f"{seconds.rstrip('Z')}.{digits[:6]:0<6}+00:00"
