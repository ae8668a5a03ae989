"""Brings the database up to date and ends: for a deployment that does so before the new version starts.

    sandherd-event-ingest migrate [--wait SECONDS]

The service does the same by itself when it starts; whoever is first does it, and the others find it done. The exit
status is 1 if the database is away for longer than that, or is not for this version.
"""

import argparse
import asyncio
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

import asyncpg

from event_ingest.database import Connection, Fault, fault_of
from event_ingest.migrating import MigrationRefusedError, migrate
from event_ingest.partitions import ensure_partitions
from sandherd.contracts.errors import ContractError
from sandherd.settings import load
from sandherd.telemetry import logs

_CONNECT_TIMEOUT: Final = 3.0
_LOOK_AGAIN: Final = 0.5
_WAIT: Final = 60.0


async def upgrade(url: str, patience: float) -> list[int]:
    """Wait for the database, apply what is not applied, and return the numbers.

    Raises `MigrationRefusedError`, and what says that the database is away.
    """
    connection = await _connected(url, patience)
    try:
        done = await migrate(connection)
        await ensure_partitions(connection, datetime.now(UTC))
        return done
    finally:
        await connection.close()


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
    migrating.add_argument("--wait", type=float, default=_WAIT, metavar="SECONDS", help="for the database [60]")
    told = parser.parse_args(arguments)
    try:
        settings = load().settings
        logs.configure("event-ingest", settings.log_level)
        done = asyncio.run(upgrade(settings.database_url, told.wait))
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
