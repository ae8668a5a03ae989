"""Measures how full streams are, for metrics and for a warning before they are full."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from sandherd.bus.broker_errors import BROKER_ERRORS
from sandherd.bus.connection import Bus
from sandherd.concurrency import cancel_and_wait, sleep_aligned
from sandherd.contracts.streams import CONSUMERS
from sandherd.telemetry.meters import Meters

WARNING_RATIO: Final = 0.8
"""From this fill ratio on, a warning is shown. Regular purging keeps a stream below it."""
_MEASURE_INTERVAL_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True)
class StreamFill:
    """The state of a stream: its size, the number of its messages, and its first and last sequence number.

    `refuses` states whether a full stream refuses new messages. Otherwise it removes old ones.
    """

    stream: str
    held: int
    """The size in bytes."""
    limit: int
    """The maximum size in bytes; 0 or less if there is none."""
    messages: int
    first: int
    last: int
    refuses: bool

    @property
    def ratio(self) -> float:
        """The fill ratio: 0 for an empty stream, 1 for a full one, and 0 for a stream without a limit."""
        return self.held / self.limit if self.limit > 0 else 0.0


async def read_fill(bus: Bus, stream: str) -> StreamFill:
    """Read the current state of a stream. Raises nats-py's errors, and `TimeoutError`."""
    info = await bus.js.stream_info(stream)
    state, config = info.state, info.config
    return StreamFill(
        stream=stream,
        held=state.bytes,
        limit=config.max_bytes or 0,
        messages=state.messages,
        first=state.first_seq,
        last=state.last_seq,
        refuses=config.discard == "new",
    )


async def acknowledged_sequence(bus: Bus, fill: StreamFill) -> int:
    """The sequence number up to which every durable consumer of the stream table has acknowledged.

    `fill` is the state of the stream, read before this call. Raises nats-py's errors, and `TimeoutError`.
    """
    return min([await _acknowledged_by(bus, row.name, fill) for row in CONSUMERS if row.stream == fill.stream])


async def _acknowledged_by(bus: Bus, consumer: str, fill: StreamFill) -> int:
    info = await bus.js.consumer_info(fill.stream, consumer)
    if not info.num_pending and not info.num_ack_pending:
        # If the filter selects few messages, the ack floor may be old although all of them are handled.
        return fill.last
    return info.ack_floor.stream_seq if info.ack_floor else 0


def fill_warning(fills: Sequence[StreamFill]) -> str | None:
    """The warning about streams that will soon refuse messages; None if there are none."""
    near = [f"{fill.stream} is {fill.ratio:.0%} full" for fill in fills if fill.refuses and fill.ratio >= WARNING_RATIO]
    return f"{', '.join(near)}; a full stream accepts no messages, and its publishers wait" if near else None


class StreamUsage:
    """Measures the streams that a service uses."""

    def __init__(self, streams: Sequence[str], meters: Meters) -> None:
        self._streams = streams
        self._meters = meters
        self._fills: dict[str, StreamFill] = {}

    async def watch(self, bus: Bus) -> None:
        """Measure repeatedly, until cancelled. If a measurement fails, the last values stay."""
        while True:
            await asyncio.gather(*(self._measure(bus, stream) for stream in self._streams))
            await sleep_aligned(_MEASURE_INTERVAL_SECONDS)

    async def _measure(self, bus: Bus, stream: str) -> None:
        reading = asyncio.create_task(read_fill(bus, stream))
        try:
            # In a separate task: nats-py may swallow a cancellation, and stopping would take seconds.
            await asyncio.wait([reading])
            fill = reading.result()
        except BROKER_ERRORS:
            return  # the broker is unavailable: the health check of the connection reports it
        finally:
            await cancel_and_wait([reading])
        self._fills[stream] = fill
        self._meters.set("sandherd_stream_fill_ratio", fill.ratio, stream=stream)
        self._meters.set("sandherd_stream_bytes", fill.held, stream=stream)
        self._meters.set("sandherd_stream_messages", fill.messages, stream=stream)

    def warning(self) -> str | None:
        """The warning about almost full streams, for `/readyz`; None if there are none."""
        return fill_warning([*self._fills.values()])
