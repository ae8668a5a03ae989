"""Brings the database up to date and ends: for a deployment that does so beside the services.

    sandherd-event-ingest migrate before|after [--wait SECONDS]

`before` is what the version before can run with, and comes before the new code; the service does it by itself, too,
when it starts. `after` is all the rest, and waits until no older event-ingest is connected; so does `migrate` alone.
Whoever is first does it, and the others find it done. The exit status is 1 if the database is away for longer than
that, is not for this version, or is still used by an older one.
"""

import argparse
import asyncio
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

import asyncpg

from event_ingest.database import CALLED, Connection, Fault, fault_of
from event_ingest.migrating import MigrationRefusedError, left, migrate, read_migrations
from event_ingest.partitions import ensure_partitions
from sandherd.contracts.errors import ContractError
from sandherd.settings import load
from sandherd.telemetry import logs

_CONNECT_TIMEOUT: Final = 3.0
_LOOK_AGAIN: Final = 0.5
_WAIT: Final = 60.0
_CONNECTED: Final = """
select application_name from pg_stat_activity where datname = current_database() and application_name like $1
"""


async def upgrade(url: str, patience: float, *, after: bool) -> list[int]:
    """Wait for the database, apply what is not applied, and return the numbers.

    Raises `MigrationRefusedError`, and what says that the database is away.
    """
    connection = await _connected(url, patience)
    try:
        done = await migrate(connection, after=False)
        await ensure_partitions(connection, datetime.now(UTC))
        if after and await left(connection):
            await _until_newest(connection, patience)
            done += await migrate(connection)
        return done
    finally:
        await connection.close()


async def _until_newest(connection: Connection, patience: float) -> None:
    """Wait until no event-ingest of a version before is connected, which would miss what is taken away."""
    known, deadline = read_migrations()[-1].number, asyncio.get_running_loop().time() + patience
    while older := await _older(connection, known):
        if asyncio.get_running_loop().time() > deadline:
            told = f"{older} of its connections are of an older version"
            raise MigrationRefusedError(f"event-ingest still runs as it was ({told}): upgrade it, then do this again")
        await asyncio.sleep(_LOOK_AGAIN)


async def _older(connection: Connection, known: int) -> int:
    rows = await connection.fetch(_CONNECTED, f"{CALLED}%")
    numbers = (row["application_name"].removeprefix(CALLED).strip() for row in rows)
    return sum(not number.isdecimal() or int(number) < known for number in numbers)


async def _connected(url: str, patience: float) -> Connection:
    deadline = asyncio.get_running_loop().time() + patience
    while True:
        try:
            return await asyncpg.connect(url, timeout=_CONNECT_TIMEOUT, server_settings={"timezone": "UTC"})
        except Exception as error:  # narrowed by its fault; what does not pass by waiting is raised again
            if fault_of(error) is not Fault.AWAY or asyncio.get_running_loop().time() > deadline:
                raise
        await asyncio.sleep(_LOOK_AGAIN)


def main(arguments: Sequence[str]) -> int:
    """The program; its exit status."""
    parser = argparse.ArgumentParser("sandherd-event-ingest", description="The service, or one thing done by it.")
    once = parser.add_subparsers(dest="what", required=True)
    migrating = once.add_parser("migrate", help="bring the database up to date, and end")
    migrating.add_argument(
        "kind", nargs="?", choices=("before", "after"), default="after", help="how far: before the new code, or all"
    )
    migrating.add_argument(
        "--wait", type=float, default=_WAIT, metavar="SECONDS", help="for the database, and for older versions [60]"
    )
    told = parser.parse_args(arguments)
    try:
        settings = load().settings
        logs.configure("event-ingest", settings.log_level)
        done = asyncio.run(upgrade(settings.database_url, told.wait, after=told.kind == "after"))
    except (MigrationRefusedError, ContractError) as error:
        return _refuse(str(error))
    except Exception as error:  # narrowed by its fault; what is none of the database is raised again
        if fault_of(error) is None:
            raise
        return _refuse(f"the database can't be used: {type(error).__name__}: {error}")
    sys.stdout.write(f"migrated {', '.join(map(str, done))}\n" if done else "up to date\n")
    return 0


def _refuse(why: str) -> int:
    sys.stderr.write(f"sandherd-event-ingest: {' '.join(why.split())}\n")
    return 1
