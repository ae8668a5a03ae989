"""The baseline of ingest, used nowhere else: an HTTP endpoint that stores each posted event with one INSERT.

`python -m tests.bench.ingest_endpoint DATABASE_URL PORT MOMENTS`. It uses FastAPI and asyncpg on uvicorn with uvloop
and httptools, the fastest usual way. Its table, indexes and columns are those of event-ingest.
"""

import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import asyncpg
import uvicorn
from fastapi import FastAPI, Response
from pydantic import BaseModel

from tests.bench.ingest_events import write_moments

CONNECTIONS: Final = 10
INSERT: Final = """
insert into events
    (id, stream_sequence, sequence, time, project, entity, type, source, taskid, sandboxid, envelope, size)
values ($1, 0, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11) on conflict (id) do nothing
"""


class Event(BaseModel):
    """An event as such an endpoint would declare it."""

    specversion: str
    id: UUID
    source: str
    type: str
    subject: str
    time: datetime
    datacontenttype: str
    dataschema: str
    sequence: int
    traceparent: str | None = None
    project: str
    taskid: str | None = None
    sandboxid: str | None = None
    data: dict[str, Any]


def build(database_url: str, moments: Path) -> FastAPI:
    """Build the application. At its end it writes the time at which each event was committed."""
    committed: dict[str, float] = {}

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with asyncpg.create_pool(database_url, min_size=CONNECTIONS, max_size=CONNECTIONS) as pool:
            app.state.pool = pool
            yield
        write_moments(moments, committed)

    app = FastAPI(lifespan=lifespan)

    @app.post("/events", status_code=204)
    async def take(event: Event) -> Response:
        document = event.model_dump_json(exclude_none=True)
        await app.state.pool.execute(INSERT, *_values(event), document, len(document))
        committed[str(event.id)] = time.monotonic()
        return Response(status_code=204)

    return app


def _values(event: Event) -> tuple[Any, ...]:
    return (
        event.id,
        event.sequence,
        event.time,
        event.project,
        event.subject,
        event.type,
        event.source,
        event.taskid,
        event.sandboxid,
    )


if __name__ == "__main__":
    url, port, path = sys.argv[1:]
    uvicorn.run(
        build(url, Path(path)),
        port=int(port),
        loop="uvloop",
        http="httptools",
        access_log=False,
        log_level="error",
    )
