"""The disk space of an event: in Postgres with its indexes, and in the stream, beside the size of its document."""

import asyncpg

from event_ingest.batch_statements import STORE
from event_ingest.event_rows import columns
from event_ingest.short_rows import short_rows
from sandherd.contracts.subjects import Principal
from tests.bench.ingest import Bench, batches_of
from tests.bench.ingest_events import BenchEvent, make_events
from tests.bench.recorder import Recorder

_EVENTS = 20_000
_SIZE = "select sum(pg_total_relation_size(relid)) from pg_partition_tree('events')"


async def measure(recorder: Recorder) -> None:
    """Measure bytes for each of a herd's usual events. Every run has its own broker and database."""
    for _ in recorder.each("room.event"):
        events = make_events(_EVENTS)
        async with Bench.open() as bench:
            await bench.throughput(_EVENTS)
            async with bench.broker.bus(Principal.EVENT_INGEST) as bus:
                state = (await bus.js.stream_info("EVENTS")).state
            found = {"postgres": await _stored(bench, events), "stream": state.bytes / state.messages}
        recorder.add("room.event", found, sum(len(event.document) for event in events) / _EVENTS)


async def _stored(bench: Bench, events: list[BenchEvent]) -> float:
    """Bytes in Postgres for each of these events."""
    connection = await asyncpg.connect(await bench.new_database())
    try:
        empty = await connection.fetchval(_SIZE)
        for batch in batches_of(events):
            await connection.fetchval(STORE, *columns(short_rows(batch.rows, batch.short)))
        return float(await connection.fetchval(_SIZE) - empty) / len(events)
    finally:
        await connection.close()
