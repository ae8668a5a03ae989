"""event-ingest, which also notes when each batch was committed: `python -m tests.bench.timed_ingest MOMENTS`."""

import sys
import time
from pathlib import Path
from unittest.mock import patch

from event_ingest import ingest, main
from event_ingest.batch_writer import BatchResult, store
from event_ingest.database import Database
from event_ingest.event_rows import EventBatch
from tests.bench.ingest_events import write_moments

committed: dict[str, float] = {}


async def store_and_note(database: Database, batch: EventBatch) -> BatchResult:
    """Call `store`, and note the time after its commit."""
    stored = await store(database, batch)
    moment = time.monotonic()
    for row in batch.rows:
        committed.setdefault(str(row[0]), moment)
    return stored


if __name__ == "__main__":
    moments = Path(sys.argv.pop(1))  # else event-ingest would read it as its own argument
    try:
        with patch.object(ingest, "store", store_and_note):
            main.main()
    finally:
        write_moments(moments, committed)
