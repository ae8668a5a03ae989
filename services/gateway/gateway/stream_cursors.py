"""Positions in the stream of events, as clients get and return them: `<epoch>-<sequence>`. Pure."""

import re
from dataclasses import dataclass
from typing import Final

from gateway.stream_reader import StreamState

_POSITION: Final = re.compile(r"^([0-9]{1,40})-([0-9]{1,19})$")


@dataclass(frozen=True)
class StreamStart:
    """The start of a stream of events: after the sequence `after`.

    `resync` is the reason why it does not begin after the position that the client has requested.
    """

    after: int
    resync: str | None = None


def cursor(epoch: str, sequence: int) -> str:
    """A position as text."""
    return f"{epoch}-{sequence}"


def start_of(position: str | None, state: StreamState) -> StreamStart:
    """The start for a client that has received all events up to `position`; without a position, at the next event."""
    if position is None:
        return StreamStart(state.last)
    match = _POSITION.match(position)
    if match is None:
        return StreamStart(state.last, "the position is not one of this API")
    if match[1] != state.epoch:
        return StreamStart(state.last, "the stream of events was recreated")
    after = int(match[2])
    if after > state.last:
        return StreamStart(state.last, "the position is later than every event: the stream was restored from a backup")
    if after + 1 < state.first:
        return StreamStart(state.last, "events after the position are no longer in the stream")
    return StreamStart(after)
