"""Bringing the schema up to date: forward only, each file once, and never a file that was changed afterwards."""

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Final

import asyncpg

from event_ingest.database import Connection
from sandherd.telemetry import logs

_LOCK: Final = 0x5A4D_4849_5354  # any number that nobody else uses
_FILE: Final = re.compile(r"^(\d{4})_([a-z0-9_]+)\.sql$")
_BOOK: Final = """
create table if not exists schema_migrations (
    number integer primary key,
    name text not null,
    sha256 text not null,
    applied_at timestamptz not null default now()
)
"""
_log: Final = logs.get("migrating")


class MigrationRefusedError(Exception):
    """The database and this service's files disagree. Nothing was changed; the service must not start."""


@dataclass(frozen=True)
class Migration:
    """One file: its number, its name, and what it does."""

    number: int
    name: str
    sql: str

    @property
    def sha256(self) -> str:
        """Of the text: what tells an edited file."""
        return hashlib.sha256(self.sql.encode()).hexdigest()


def read_migrations(directory: Traversable | None = None) -> list[Migration]:
    """The files, in order. Raises `MigrationRefusedError` if the numbers have a hole."""
    found = []
    for file in (directory or resources.files("event_ingest.migrations")).iterdir():
        match = _FILE.match(file.name)
        if match:
            found.append(Migration(int(match[1]), match[2], file.read_text(encoding="utf-8")))
    found.sort(key=lambda migration: migration.number)
    if [migration.number for migration in found] != list(range(1, len(found) + 1)):
        raise MigrationRefusedError(f"migrations must be numbered 1, 2, 3 …: {[m.number for m in found]}")
    return found


def unapplied(migrations: Sequence[Migration], applied: Mapping[int, str]) -> list[Migration]:
    """What is still to be done, given the checksums of what was. Raises `MigrationRefusedError`."""
    known = {migration.number: migration for migration in migrations}
    for number, checksum in applied.items():
        if number not in known:
            raise MigrationRefusedError(f"the database has migration {number}; this service is too old for it: upgrade")
        if known[number].sha256 != checksum:
            raise MigrationRefusedError(
                f"migration {number} ({known[number].name}) was edited after it was applied; "
                "put the file back and write a new one"
            )
    todo = [migration for migration in migrations if migration.number not in applied]
    if todo and applied and todo[0].number < max(applied):
        raise MigrationRefusedError(f"migration {todo[0].number} was left out, but {max(applied)} is applied")
    return todo


async def migrate(connection: Connection, migrations: Sequence[Migration] | None = None) -> list[int]:
    """Apply what is not applied yet, and return the numbers. Of several that start at once, one does it.

    Raises `MigrationRefusedError`; an error in a file leaves the database as it was before that file.
    """
    wanted = read_migrations() if migrations is None else migrations
    await connection.execute("select pg_advisory_lock($1)", _LOCK)
    try:
        await connection.execute(_BOOK)
        rows = await connection.fetch("select number, sha256 from schema_migrations")
        todo = unapplied(wanted, {row["number"]: row["sha256"] for row in rows})
        for migration in todo:
            await _apply(connection, migration)
        return [migration.number for migration in todo]
    finally:
        if not connection.is_closed():
            await connection.execute("select pg_advisory_unlock($1)", _LOCK)


async def _apply(connection: Connection, migration: Migration) -> None:
    try:
        async with connection.transaction():
            await connection.execute("set local statement_timeout = 0")  # it may take as long as it takes
            await connection.execute(migration.sql, timeout=86_400)
            await connection.execute(
                "insert into schema_migrations (number, name, sha256) values ($1, $2, $3)",
                migration.number,
                migration.name,
                migration.sha256,
            )
    except asyncpg.SyntaxOrAccessError as error:
        raise MigrationRefusedError(f"migration {migration.number} ({migration.name}): {error}") from error
    _log.info("migrated", number=migration.number, migration=migration.name)
