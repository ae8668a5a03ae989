"""Migrates the database and exits: for a deployment that migrates separately from starting the services.

    sandherd-event-ingest migrate before|after [--wait SECONDS]

The commands `readers` and `rebuild` are in `event_ingest.reader_roles` and `event_ingest.rebuild`.

`before` applies what the previous version can run with, before the new code runs; the service does the same when it
starts. `after`, the default, does so first. Then it waits until no older event-ingest is connected, and applies the
rest. Several runs at once do no harm. The exit status is 1 if the database is unavailable for longer than `--wait`,
does not match this version, or is still used by an older version.
"""

import argparse
import asyncio
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

from event_ingest import reader_roles, rebuild
from event_ingest.database import Connection, DatabaseFault, classify_error
from event_ingest.database_sessions import DatabaseHosts, statement_cache
from event_ingest.migrator import MigrationRefusedError, count_older, migrate, migrate_before, pending_migrations
from event_ingest.schema import ensure_partitions
from sandherd.contracts.errors import ContractError
from sandherd.settings import load
from sandherd.telemetry import logs

_RETRY_SECONDS: Final = 0.5
_DEFAULT_WAIT_SECONDS: Final = 60.0


async def upgrade(url: str, timeout: float, *, after: bool) -> list[int]:
    """Wait for the database, apply the missing migrations, and return their numbers.

    Raises `MigrationRefusedError`, and the error of an unavailable database.
    """
    connection = await _connect(url, timeout)
    try:
        applied = await migrate_before(connection)
        await ensure_partitions(connection, datetime.now(UTC))
        if after and await pending_migrations(connection):
            await _wait_for_older(connection, timeout)
            applied += await migrate(connection)
        return applied
    finally:
        await connection.close()


async def _wait_for_older(connection: Connection, timeout: float) -> None:
    """Wait until no event-ingest of an older version is connected: it needs what will be removed."""
    deadline = asyncio.get_running_loop().time() + timeout
    while older := await count_older(connection):
        if asyncio.get_running_loop().time() > deadline:
            raise MigrationRefusedError(
                f"an older event-ingest still runs ({older} connections): upgrade it, then run this again"
            )
        await asyncio.sleep(_RETRY_SECONDS)


async def _connect(url: str, timeout: float) -> Connection:
    hosts, deadline = DatabaseHosts(url), asyncio.get_running_loop().time() + timeout
    while True:
        try:
            settings = {"timezone": "UTC"}
            connection: Connection = await hosts.connect(server_settings=settings, **statement_cache(pooled=True))
        except Exception as error:  # narrowed by `classify_error`; others are raised again
            if classify_error(error) is not DatabaseFault.UNAVAILABLE or asyncio.get_running_loop().time() > deadline:
                raise
        else:
            return connection
        await asyncio.sleep(_RETRY_SECONDS)


def main(arguments: Sequence[str]) -> int:
    """Run the command; returns the exit status."""
    parser = argparse.ArgumentParser("sandherd-event-ingest", description="The service, or a one-time command.")
    commands = parser.add_subparsers(dest="command", required=True)
    migrate_parser = commands.add_parser("migrate", help="migrate the database, and exit")
    migrate_parser.add_argument(
        "kind",
        nargs="?",
        choices=("before", "after"),
        default="after",
        help="only the migrations before the new code runs, or all [after]",
    )
    migrate_parser.add_argument(
        "--wait",
        type=float,
        default=_DEFAULT_WAIT_SECONDS,
        metavar="SECONDS",
        help="maximum time to wait for the database and for older versions [60]",
    )
    reader_roles.add_command(commands)
    rebuild.add_command(commands)
    options = parser.parse_args(arguments)
    try:
        settings = load().settings
        logs.configure("event-ingest", settings.log_level)
        text = asyncio.run(_run(settings.database_url, options))
    except (MigrationRefusedError, ContractError, *reader_roles.REFUSALS) as error:
        return _fail(str(error))
    except Exception as error:  # narrowed by `classify_error`; others are raised again
        if classify_error(error) is None:
            raise
        return _fail(f"the database can't be used: {type(error).__name__}: {error}")
    sys.stdout.write(text)
    return 0


async def _run(url: str, options: argparse.Namespace) -> str:
    """Run the command in the arguments. Returns the text to print."""
    if options.command == "migrate":
        applied = await upgrade(url, options.wait, after=options.kind == "after")
        return f"migrated {', '.join(map(str, applied))}\n" if applied else "up to date\n"
    connection = await _connect(url, _DEFAULT_WAIT_SECONDS)
    try:
        if options.command == "rebuild":
            return await rebuild.run_command(connection, options)
        return await reader_roles.run_command(connection, options)
    finally:
        await connection.close()


def _fail(problem: str) -> int:
    sys.stderr.write(f"sandherd-event-ingest: {' '.join(problem.split())}\n")
    return 1
