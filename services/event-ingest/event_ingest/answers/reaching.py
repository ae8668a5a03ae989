"""Messages straight out of a stream, for whoever asks: what the broker can't give becomes a refusal."""

import nats.errors

from sandherd.bus.connection import Bus
from sandherd.bus.direct_get import Kept, read_batch
from sandherd.contracts.errors import Code, ContractError

__all__ = ["Kept", "broker_away", "reach"]


def broker_away(error: Exception) -> ContractError:
    """The refusal when a stream does not answer."""
    return ContractError(
        Code.UNAVAILABLE, f"the broker does not answer ({type(error).__name__})", remedy="see `sandherd status`"
    )


async def reach(bus: Bus, stream: str, subject: str, *, first: int, most: int, most_bytes: int) -> list[Kept]:
    """Up to `most` messages of a subject from sequence `first` on, in order; at least one if there is one.

    Raises `ContractError` (`unavailable`) when the stream does not answer.
    """
    try:
        return await read_batch(bus, stream, subject, first=first, most=most, most_bytes=most_bytes)
    except (nats.errors.Error, OSError) as error:
        raise broker_away(error) from error
