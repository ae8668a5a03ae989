"""Positions in the stream of events, as clients get and return them: `<epoch>-<sequence>`. Pure."""

import re
from dataclasses import dataclass
from typing import Final

from gateway.stream_reader import StreamState

_FORM: Final = re.compile(r"^([0-9]{1,40})-([0-9]{1,19})$")


@dataclass(frozen=True)
class StreamStart:
    """Where a stream of events begins: behind `after`; `resync` is why it does not begin where the client wanted."""

    after: int
    resync: str | None = None


def cursor(epoch: str, sequence: int) -> str:
    """A position as text."""
    return f"{epoch}-{sequence}"


def start_of(wanted: str | None, state: StreamState) -> StreamStart:
    """Where to begin for a client that has received everything up to `wanted`; without it, with the next event."""
    if wanted is None:
        return StreamStart(state.last)
    form = _FORM.match(wanted)
    if form is None:
        return StreamStart(state.last, "the position is not one of this API")
    if form[1] != state.epoch:
        return StreamStart(state.last, "the stream of events was recreated")
    after = int(form[2])
    if after > state.last:
        return StreamStart(state.last, "the position is later than every event: the stream was restored from a backup")
    if after + 1 < state.first:
        return StreamStart(state.last, "events after the position are no longer in the stream")
    return StreamStart(after)
