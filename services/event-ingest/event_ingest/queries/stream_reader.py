"""Reads from a stream for a request; an unavailable broker becomes an `unavailable` error."""

from event_ingest.ingest import CONSUMER
from sandherd.bus.broker_errors import BROKER_ERRORS
from sandherd.bus.connection import Bus
from sandherd.bus.direct_get import StoredMessage, read_batch
from sandherd.contracts.errors import Code, ContractError
from sandherd.contracts.streams import BY_CONSUMER

__all__ = ["StoredMessage", "broker_unavailable", "read_messages", "stored_through"]


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
    except BROKER_ERRORS as error:
        raise broker_unavailable(error) from error


async def stored_through(bus: Bus, timeout: float = 2) -> int:
    """The stream sequence up to which every event is acknowledged: it is stored, or can never be.

    Later events may be stored, too: batches are stored concurrently, in any order. Raises one of `BROKER_ERRORS`.
    """
    info = await bus.js.consumer_info(BY_CONSUMER[CONSUMER].stream, CONSUMER, timeout=timeout)
    return info.ack_floor.stream_seq if info.ack_floor else 0
