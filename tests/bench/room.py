"""The room that an event takes on disk: in Postgres with its indexes, and in the stream, beside its document alone."""

import asyncpg

from event_ingest.rows import columns
from event_ingest.statements import STORE
from sandherd.contracts.subjects import Principal
from tests.bench.ingest import Bench, Figure, batches_of
from tests.bench.ingest_events import make_events

_EVENTS = 20_000
_SIZE = "select sum(pg_total_relation_size(relid)) from pg_partition_tree('events')"


async def figures(count: int = _EVENTS) -> dict[str, Figure]:
    """In bytes for each event, of a herd's usual ones."""
    events = make_events(count)
    document = sum(len(event.document) for event in events) / count
    async with Bench.open() as bench:
        await bench.throughput(count)
        async with bench.broker.bus(Principal.EVENT_INGEST) as bus:
            state = (await bus.js.stream_info("EVENTS")).state
        connection = await asyncpg.connect(await bench.new_database())
        try:
            empty = await connection.fetchval(_SIZE)
            for batch in batches_of(events):
                await connection.fetchval(STORE, *columns(batch.rows))
            stored = float(await connection.fetchval(_SIZE) - empty) / count
        finally:
            await connection.close()
    value = {"postgres": round(stored), "stream": round(state.bytes / state.messages)}
    return {
        "room.event": {
            "value": value,
            "unit": "bytes/event",
            "baseline": round(document),
            "ratio": round(stored / document, 2),
        }
    }
