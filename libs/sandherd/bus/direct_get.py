"""Messages straight out of a stream, many in one request and without a consumer (server 2.11: batched direct get)."""

import json
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import nats.errors
from nats.aio.msg import Msg

from sandherd.bus.connection import Bus

_TIMEOUT: Final = 2.0
_NO_MESSAGE: Final = "404"
_END_OF_BATCH: Final = "204"
_NO_RESPONDERS: Final = "503"


@dataclass(frozen=True)
class Kept:
    """A message as a stream keeps it."""

    sequence: int
    subject: str
    at: datetime
    headers: dict[str, str]
    data: bytes


async def read_batch(bus: Bus, stream: str, subject: str, *, first: int, most: int, most_bytes: int) -> list[Kept]:
    """Up to `most` messages of a subject from sequence `first` on, in order; at least one if there is one.

    Raises nats-py's errors and `TimeoutError` when the stream does not answer, within seconds.
    """
    request = {"seq": max(first, 1), "next_by_subj": subject, "batch": most, "max_bytes": most_bytes}
    inbox = bus.client.new_inbox()
    subscription = await bus.client.subscribe(inbox)
    try:
        await bus.client.publish(f"{bus.api}.DIRECT.GET.{stream}", json.dumps(request).encode(), inbox)
        return await _collect(subscription)
    finally:
        if not bus.closed:
            await subscription.unsubscribe()


async def _collect(subscription: Any) -> list[Kept]:
    found: list[Kept] = []
    while True:
        msg: Msg = await subscription.next_msg(timeout=_TIMEOUT)
        headers = msg.headers or {}
        status = headers.get("Status") if "Nats-Sequence" not in headers else None
        if status in {_NO_MESSAGE, _END_OF_BATCH}:
            return found
        if status == _NO_RESPONDERS:
            raise nats.errors.NoRespondersError
        if status is not None:
            raise nats.errors.Error(f"{status} {headers.get('Description', '')}")
        found.append(read_kept(headers, msg.data))


def read_kept(headers: dict[str, str], data: bytes) -> Kept:
    """A message of a direct read, or one that its stream published again. Raises `KeyError` or `ValueError`."""
    return Kept(
        sequence=int(headers["Nats-Sequence"]),
        subject=headers["Nats-Subject"],
        at=datetime.fromisoformat(_to_microseconds(headers["Nats-Time-Stamp"])),
        headers=headers,
        data=data,
    )


def _to_microseconds(stamp: str) -> str:
    """The broker writes up to nine digits of a second (RFC 3339); Python reads six."""
    whole, _, rest = stamp.partition(".")
    digits = rest.rstrip("Z")
    return f"{whole.rstrip('Z')}.{digits[:6]:0<6}+00:00"
