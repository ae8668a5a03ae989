"""event-ingest: every event into Postgres, once, and answers about the past."""

from datetime import UTC, datetime
from functools import partial

from event_ingest.database import Database
from event_ingest.ingest import CONSUMER, Ingest
from event_ingest.schema import Schema
from sandherd.bus.service import Service, serve
from sandherd.contracts.subjects import Principal
from sandherd.settings import Settings


def compose(settings: Settings) -> Service:
    """The service, put together. The same for tests and for the real one."""
    service = Service(Principal.EVENT_INGEST, settings)
    database = Database(settings.database_url, Schema(partial(datetime.now, UTC)).prepare)
    ingest = Ingest(database, service.meters)
    service.health.add("postgres", database.problem)
    service.background("database", database.keep)
    service.consume_batches(CONSUMER, ingest.handle, batch=settings.ingest_batch)
    service.requeues({"EVENTS": ingest.handle_one})
    return service


def main() -> None:
    """The program."""
    serve(Principal.EVENT_INGEST, compose)


if __name__ == "__main__":
    main()
