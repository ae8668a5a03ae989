"""A partition for each day, ready before the day begins."""

from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from typing import Final
from uuid import UUID

from event_ingest.database import Connection
from sandherd.telemetry import logs

DAYS_BEFORE: Final = 1
DAYS_AHEAD: Final = 7
_LOCK: Final = 0x5A4D_5041_5254
_EPOCH: Final = date(1970, 1, 1)
_DAY_MS: Final = 86_400_000
_log: Final = logs.get("partitions")


def bounds(day: date) -> tuple[UUID, UUID]:
    """The first id of a UTC day and the first of the next: a UUIDv7 begins with 48 bits of milliseconds (RFC 9562)."""
    first = (day - _EPOCH).days * _DAY_MS
    return UUID(int=first << 80), UUID(int=(first + _DAY_MS) << 80)


def partition_name(day: date) -> str:
    """The table of a day."""
    return f"events_{day:%Y%m%d}"


def wanted_days(today: date) -> Iterator[date]:
    """The days that must have a partition."""
    return (today + timedelta(days=offset) for offset in range(-DAYS_BEFORE, DAYS_AHEAD + 1))


async def ensure_partitions(connection: Connection, now: datetime) -> list[date]:
    """Make what is missing of the days around `now`; returns those days. Safe in several replicas at once."""
    made = []
    for day in wanted_days(now.astimezone(UTC).date()):
        async with connection.transaction():
            await connection.execute("select pg_advisory_xact_lock($1)", _LOCK)
            if not await connection.fetchval("select to_regclass($1) is not null", partition_name(day)):
                await _make(connection, day)
                made.append(day)
    if made:
        _log.info("partitions made", first=made[0].isoformat(), last=made[-1].isoformat())
    return made


async def _make(connection: Connection, day: date) -> None:
    """A new partition. Ids of that day that came too early lie in the default one, and move."""
    first, end = bounds(day)
    name = partition_name(day)
    await connection.execute("lock table events_default in access exclusive mode")
    await connection.execute(f"create table {name} (like events including all)")
    await connection.execute(
        f"with early as (delete from events_default where id >= $1 and id < $2 returning *) "  # noqa: S608  # our name
        f"insert into {name} select * from early",
        first,
        end,
    )
    await connection.execute(f"alter table events attach partition {name} for values from ('{first}') to ('{end}')")
