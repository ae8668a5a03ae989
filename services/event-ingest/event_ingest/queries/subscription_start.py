"""Refuses a subscription that starts at a future sequence or time: it would omit the events until then."""

from datetime import UTC, datetime

from event_ingest.queries.stream_reader import broker_unavailable
from sandherd.bus.broker_errors import READ_ERRORS
from sandherd.bus.connection import Bus
from sandherd.bus.stream_bounds import StreamBounds, read_bounds
from sandherd.contracts.errors import Code, ContractError
from sandherd.contracts.subscriptions import STREAM


async def check_start(bus: Bus, start: str | int | datetime) -> None:
    """Raise `ContractError` for a sequence after the stream's next one, or a time after the broker's present time."""
    if isinstance(start, str):
        return
    bounds = await _bounds(bus)
    last, now = bounds.last, bounds.requested_at
    if isinstance(start, int) and start > last + 1:
        raise _refusal(
            f"{start} is in the future: the last sequence of {STREAM} is {last}",
            "use `all` if the sequence is of another broker, or of a stream that was recreated; or `new`",
        )
    if isinstance(start, datetime) and start > now:
        raise _refusal(f"{_text(start)} is in the future: it is {_text(now)} now", "use `new` for events from now on")


async def _bounds(bus: Bus) -> StreamBounds:
    try:
        return await read_bounds(bus, STREAM, timeout=5)
    except READ_ERRORS as error:
        raise broker_unavailable(error) from error


def _text(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat(timespec="seconds")


def _refusal(message: str, remedy: str) -> ContractError:
    return ContractError(Code.INVALID_FIELD, f"start: {message}", field="start", remedy=remedy)
