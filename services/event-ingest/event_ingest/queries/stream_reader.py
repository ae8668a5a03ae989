"""Reads messages directly from a stream for a request; an unavailable broker becomes an `unavailable` error."""

import nats.errors

from sandherd.bus.connection import Bus
from sandherd.bus.direct_get import StoredMessage, read_batch
from sandherd.contracts.errors import Code, ContractError

__all__ = ["StoredMessage", "broker_unavailable", "read_messages"]


def broker_unavailable(error: Exception) -> ContractError:
    """The error when a stream does not respond."""
    return ContractError(
        Code.UNAVAILABLE, f"the broker does not respond ({type(error).__name__})", remedy="check the herd"
    )


async def read_messages(
    bus: Bus, stream: str, subject: str, *, first: int, limit: int, max_bytes: int
) -> list[StoredMessage]:
    """Up to `limit` messages of a subject from sequence `first` on, in order; at least one if there is one.

    Raises `ContractError` (`unavailable`) when the stream does not respond.
    """
    try:
        return await read_batch(bus, stream, subject, first=first, limit=limit, max_bytes=max_bytes)
    except (nats.errors.Error, OSError) as error:
        raise broker_unavailable(error) from error
