"""Reads the first and the last sequence number of a stream, and the broker's time.

nats-py's `stream_info` does not return the time.
"""

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import nats.errors

from sandherd.bus.connection import Bus
from sandherd.bus.errors import BusError


@dataclass(frozen=True, slots=True)
class StreamBounds:
    """The first and the last sequence number of a stream. Without messages the first one is after the last one."""

    requested_at: datetime
    """The time of the request by the broker's clock."""
    first: int
    last: int
    created: str
    """The time when the stream was created, as the broker writes it: in nanoseconds."""


async def read_bounds(bus: Bus, stream: str, *, timeout: float = 2.0) -> StreamBounds:
    """Read them from the stream's leader. Raises one of `READ_ERRORS` if the broker does not reply or refuses."""
    try:
        reply = await bus.request(f"{bus.api}.STREAM.INFO.{stream}", b"", timeout=timeout)
    except BusError as error:
        raise nats.errors.Error(str(error)) from error
    info: dict[str, Any] = json.loads(reply)
    if "error" in info:
        raise nats.errors.Error(str(info["error"].get("description")))
    requested_at, state = datetime.fromisoformat(info["ts"]).astimezone(UTC), info["state"]
    return StreamBounds(requested_at, int(state["first_seq"]), int(state["last_seq"]), info["created"])
