"""How many stored events one process of the monitor reads from a real broker, folds and evaluates, beside reading only.

Time is the CPU time of this process, without the broker's. Reading is what the monitor does: batches of the stream, in
which an event is decoded where a fact or a rule needs it.
"""

import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

from monitor.event_decoder import read
from monitor.event_reader import EventReader
from monitor.facts import ObservedEvent
from sandherd.bus.connection import Bus
from sandherd.stack.broker import Broker
from tests.bench.monitor_decisions import stream_admin
from tests.bench.recorder import Recorder

Evaluate = Callable[[ObservedEvent], object]
_FLUSHED_EVERY: Final = 500


async def measure(
    recorder: Recorder, documents: Sequence[tuple[str, bytes]], new_evaluation: Callable[[], Evaluate]
) -> None:
    """Measure `monitor.rate`: events per CPU second, with a new evaluation in each run, beside reading without one."""
    async with AsyncExitStack() as stack:
        broker = Broker(Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="reading-"))))
        stack.push_async_callback(broker.stop)
        await broker.start()
        bus = await stack.enter_async_context(stream_admin(broker))
        await _publish(bus, documents)
        for _ in recorder.each("monitor.rate"):
            judging, reading = await _read_seconds(bus, new_evaluation()), await _read_seconds(bus, lambda _seen: None)
            recorder.add("monitor.rate", len(documents) / judging, len(documents) / reading)


async def _publish(bus: Bus, documents: Sequence[tuple[str, bytes]]) -> None:
    for number, (subject, document) in enumerate(documents):
        await bus.client.publish(subject, document, headers={"Nats-Msg-Id": f"reading-{number}"})
        if number % _FLUSHED_EVERY == 0:
            await bus.client.flush(60)
    await bus.client.flush(60)
    stored = (await EventReader(bus).bounds()).last
    while stored < len(documents):
        stored = (await EventReader(bus).bounds()).last


async def _read_seconds(bus: Bus, evaluate: Evaluate) -> float:
    """The CPU time of this process to read the whole stream."""
    reader, began, position = EventReader(bus), time.process_time(), 0
    last = (await reader.bounds()).last
    while position < last:
        batch = await reader.read_from(position + 1, lambda _subject: True)
        assert batch is not None
        position = batch.position
        for event in batch.events:
            seen = read(event.subject, event.data, event.stream_sequence, event.at)
            if seen is not None:
                evaluate(seen)
    return time.process_time() - began
