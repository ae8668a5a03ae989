"""How full streams are: asked of the broker, measured, and said to people before it hurts."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import nats.errors
import nats.js.errors

from sandherd.bus.connection import Bus
from sandherd.bus.together import end
from sandherd.contracts.streams import CONSUMERS
from sandherd.telemetry.meters import Meters

WORTH_A_LOOK: Final = 0.8
"""From here on people are told. A stream into which room is given stays below it, unless that fails."""
_MEASURED_EVERY: Final = 5.0
_UNANSWERED: Final = (nats.errors.Error, nats.js.errors.Error, TimeoutError, OSError)


@dataclass(frozen=True, slots=True)
class Fill:
    """What a stream holds, in bytes and messages, the sequences at its ends, and what happens when it is full."""

    stream: str
    held: int
    limit: int
    messages: int
    first: int
    last: int
    refuses: bool

    @property
    def ratio(self) -> float:
        """From 0 for an empty stream to 1 for a full one; 0 for one without a limit."""
        return self.held / self.limit if self.limit > 0 else 0.0


async def read_fill(bus: Bus, stream: str) -> Fill:
    """How full a stream is now. Raises nats-py's errors, and `TimeoutError`."""
    info = await bus.js.stream_info(stream)
    state, config = info.state, info.config
    return Fill(
        stream=stream,
        held=state.bytes,
        limit=config.max_bytes or 0,
        messages=state.messages,
        first=state.first_seq,
        last=state.last_seq,
        refuses=config.discard == "new",
    )


async def handled(bus: Bus, fill: Fill) -> int:
    """Up to where every durable consumer of the stream table has done its work; `fill` was read before.

    Raises nats-py's errors, and `TimeoutError`.
    """
    return min([await _done_by(bus, row.name, fill) for row in CONSUMERS if row.stream == fill.stream])


async def _done_by(bus: Bus, consumer: str, fill: Fill) -> int:
    info = await bus.js.consumer_info(fill.stream, consumer)
    if not info.num_pending and not info.num_ack_pending:
        # One that takes few of the events may have done nothing for long, and still be done with all of them.
        return fill.last
    return info.ack_floor.stream_seq if info.ack_floor else 0


def remark(fills: Sequence[Fill]) -> str | None:
    """What people should know of: streams that will soon refuse what is said. None if there are none."""
    near = [f"{fill.stream} is {fill.ratio:.0%} full" for fill in fills if fill.refuses and fill.ratio >= WORTH_A_LOOK]
    return f"{', '.join(near)}; a full one takes no more, and who speaks into it waits" if near else None


class Fullness:
    """Measures the streams that a service has to do with."""

    def __init__(self, streams: Sequence[str], meters: Meters) -> None:
        self._streams = streams
        self._meters = meters
        self._fills: dict[str, Fill] = {}

    async def watch(self, bus: Bus) -> None:
        """Look again and again, until cancelled. What does not answer keeps its last value."""
        while True:
            for stream in self._streams:
                await self._measure(bus, stream)
            await asyncio.sleep(_MEASURED_EVERY)

    async def _measure(self, bus: Bus, stream: str) -> None:
        reading = asyncio.create_task(read_fill(bus, stream))
        try:
            # Waited for from outside: within it nats-py may swallow a cancellation, and a stop would take seconds.
            await asyncio.wait([reading])
            fill = reading.result()
        except _UNANSWERED:
            return  # away, which other parts say of themselves
        finally:
            await end([reading])
        self._fills[stream] = fill
        self._meters.set("sandherd_stream_fill_ratio", fill.ratio, stream=stream)
        self._meters.set("sandherd_stream_bytes", fill.held, stream=stream)
        self._meters.set("sandherd_stream_messages", fill.messages, stream=stream)

    def remark(self) -> str | None:
        """What people should know; None if all have room."""
        return remark([*self._fills.values()])
