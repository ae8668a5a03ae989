"""Messages straight out of a stream, many in one request and without a consumer (server 2.11: batched direct get)."""

import json
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import nats.errors
from nats.aio.msg import Msg

from sandherd.bus.connection import Bus
from sandherd.contracts.errors import Code, ContractError

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


def broker_away(error: Exception) -> ContractError:
    """The refusal when a stream does not answer."""
    return ContractError(
        Code.UNAVAILABLE, f"the broker does not answer ({type(error).__name__})", remedy="see `sandherd status`"
    )


async def reach(bus: Bus, stream: str, subject: str, *, first: int, most: int, most_bytes: int) -> list[Kept]:
    """Up to `most` messages of a subject from sequence `first` on, in order; at least one if there is one.

    Raises `ContractError` (`unavailable`) when the stream does not answer.
    """
    request = {"seq": max(first, 1), "next_by_subj": subject, "batch": most, "max_bytes": most_bytes}
    inbox = bus.client.new_inbox()
    subscription = await bus.client.subscribe(inbox)
    try:
        await bus.client.publish(f"$JS.API.DIRECT.GET.{stream}", json.dumps(request).encode(), inbox)
        return await _collect(subscription)
    except (nats.errors.Error, OSError) as error:
        raise broker_away(error) from error
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
        found.append(_kept(msg, headers))


def _kept(msg: Msg, headers: dict[str, str]) -> Kept:
    return Kept(
        sequence=int(headers["Nats-Sequence"]),
        subject=headers["Nats-Subject"],
        at=datetime.fromisoformat(_to_microseconds(headers["Nats-Time-Stamp"])),
        headers=headers,
        data=msg.data,
    )


def _to_microseconds(stamp: str) -> str:
    """The broker writes up to nine digits of a second (RFC 3339); Python reads six."""
    whole, _, rest = stamp.partition(".")
    digits = rest.rstrip("Z")
    return f"{whole.rstrip('Z')}.{digits[:6]:0<6}+00:00"
