"""Keeps the schema ready: applies migrations, and creates the partition of each day before the day begins."""

from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, timedelta
from typing import Final
from uuid import UUID

from event_ingest.database import Connection, Database
from event_ingest.migrator import MigrationRefusedError, migrate_before, missing_migrations
from event_ingest.reader_roles import end_readers
from sandherd.contracts.errors import ContractError
from sandherd.contracts.requests.statistics import RATE_DAYS
from sandherd.telemetry import logs

_DELETE_RATES: Final = "delete from event_rates where minute < $1"


class Schema:
    """Prepares the database at the first check, on each new day, and after it was emptied."""

    def __init__(self, now: Callable[[], datetime]) -> None:
        self._now = now
        self._ready_on: date | None = None

    async def prepare(self, connection: Connection) -> bool:
        """Prepare the database. Returns whether events may be stored in their short form (`short_rows`).

        Raises `MigrationRefusedError` if the database is not for this version of the service.
        """
        now = self._now()
        exists = await connection.fetchval("select to_regclass('events') is not null")
        if exists and self._ready_on == now.date():
            return await stores_short_rows(connection)
        await migrate_before(connection)  # other replicas may still be of the previous version
        await ensure_partitions(connection, now)
        await connection.execute(_DELETE_RATES, now - timedelta(days=RATE_DAYS))
        self._ready_on = now.date()
        return await stores_short_rows(connection)


async def stores_short_rows(connection: Connection) -> bool:
    """Whether events may be stored in their short form (`short_rows`): no replica of the previous version runs."""
    exists: bool = await connection.fetchval("select to_regproc('stores_short_rows') is not null")
    return exists


async def check_migrations(database: Database) -> dict[str, str | None]:
    """The problem with the migrations, by the name of the database.

    It is None if all migrations that this version needs are applied, and no applied file was changed.
    """
    return {"postgres": await _problem(database)}


async def _problem(database: Database) -> str | None:
    try:
        async with database.reading() as connection:
            pending = await missing_migrations(connection)
    except ContractError as error:
        return f"unknown: {error.problem.message}"
    except MigrationRefusedError as error:
        return str(error)
    names = ", ".join(f"{migration.number} ({migration.name})" for migration in pending)
    return f"not applied: {names}" if names else None


DAYS_BEFORE: Final = 1
DAYS_AHEAD: Final = 7
"""The number of days before and after today that must have a partition."""
AUTOVACUUM: Final = "autovacuum_vacuum_insert_scale_factor = 0.05, autovacuum_freeze_min_age = 0"
"""How partitions are vacuumed. Rows are never updated, so the first vacuum may freeze them: they need not be written
again years later. At the end of a day, at most a twentieth of its rows is not vacuumed."""
_LOCK_ID: Final = 0x5A4D_5041_5254
_EPOCH: Final = date(1970, 1, 1)
_DAY_MS: Final = 86_400_000
_log: Final = logs.get("schema")


def bounds(day: date) -> tuple[UUID, UUID]:
    """The first id of a UTC day and the first of the next: a UUIDv7 begins with 48 bits of milliseconds (RFC 9562)."""
    first = (day - _EPOCH).days * _DAY_MS
    return UUID(int=first << 80), UUID(int=(first + _DAY_MS) << 80)


def partition_name(day: date) -> str:
    """The name of the partition of a day."""
    return f"events_{day:%Y%m%d}"


def required_days(today: date) -> Iterator[date]:
    """The days that must have a partition."""
    return (today + timedelta(days=offset) for offset in range(-DAYS_BEFORE, DAYS_AHEAD + 1))


async def ensure_partitions(connection: Connection, now: datetime) -> list[date]:
    """Create the missing partitions around `now`. Returns their days. Several replicas may call it at once."""
    created = []
    for day in required_days(now.astimezone(UTC).date()):
        async with connection.transaction():
            await connection.execute("select pg_advisory_xact_lock($1)", _LOCK_ID)
            if not await connection.fetchval("select to_regclass($1) is not null", partition_name(day)):
                await end_readers(connection)
                await _create_partition(connection, day)
                created.append(day)
    if created:
        _log.info("partitions created", first=created[0].isoformat(), last=created[-1].isoformat())
    return created


async def _create_partition(connection: Connection, day: date) -> None:
    """Create a partition. Events of the day that were stored before are in the default partition, and are moved."""
    first, end = bounds(day)
    name = partition_name(day)
    await connection.execute("lock table events_default in access exclusive mode")
    await connection.execute(f"create table {name} (like events including all) with ({AUTOVACUUM})")
    await connection.execute(
        f"with moved as (delete from events_default where id >= $1 and id < $2 returning *) "  # noqa: S608  # our name
        f"insert into {name} select * from moved",
        first,
        end,
    )
    await connection.execute(f"alter table events attach partition {name} for values from ('{first}') to ('{end}')")
