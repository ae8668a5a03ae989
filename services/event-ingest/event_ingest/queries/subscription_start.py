"""Refuses a subscription that starts at a future sequence or time: it would omit the events until then."""

import json
from datetime import UTC, datetime
from typing import Any

import nats.errors

from event_ingest.queries.stream_reader import broker_unavailable
from sandherd.bus.connection import Bus
from sandherd.bus.errors import BusError
from sandherd.contracts.errors import Code, ContractError
from sandherd.contracts.subscriptions import STREAM


async def check_start(bus: Bus, start: str | int | datetime) -> None:
    """Raise `ContractError` for a sequence after the stream's next one, or a time after the broker's present time."""
    if isinstance(start, str):
        return
    last, now = await _state(bus)
    if isinstance(start, int) and start > last + 1:
        raise _refusal(
            f"{start} is in the future: the last sequence of {STREAM} is {last}",
            "use `all` if the sequence is of another broker, or of a stream that was recreated; or `new`",
        )
    if isinstance(start, datetime) and start > now:
        raise _refusal(f"{_text(start)} is in the future: it is {_text(now)} now", "use `new` for events from now on")


async def _state(bus: Bus) -> tuple[int, datetime]:
    """The stream's last sequence, and the broker's time."""
    try:
        info: Any = json.loads(await bus.request(f"{bus.api}.STREAM.INFO.{STREAM}", b""))
        return int(info["state"]["last_seq"]), datetime.fromisoformat(info["ts"]).astimezone(UTC)
    except (nats.errors.Error, BusError, TimeoutError, OSError, ValueError, KeyError) as error:
        raise broker_unavailable(error) from error


def _text(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat(timespec="seconds")


def _refusal(message: str, remedy: str) -> ContractError:
    return ContractError(Code.INVALID_FIELD, f"start: {message}", field="start", remedy=remedy)
