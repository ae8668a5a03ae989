"""Migrates the schema: forward only, each file once, and never a file that was edited after it was applied.

There are two kinds, and a file's name ends with its kind:

- `.before.sql` only adds what does not affect older code. It is applied before the new code runs; the previous version
  continues to work, and can be restored.
- `.after.sql` removes or restricts what only the previous version needs. It is applied when no service of that version
  runs any more.

The first five files have no kind: they are older than the kinds, and than any release.
"""

import hashlib
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Final

import asyncpg

from event_ingest.database import APPLICATION_NAME, Connection
from sandherd.telemetry import logs

_LOCK_ID: Final = 0x5A4D_4849_5354  # any number that nothing else uses
_FILE: Final = re.compile(r"^(\d{4})_([a-z0-9_]+)(?:\.(before|after))?\.sql$")
_LAST_FOUNDATION_NUMBER: Final = 5
"""The last number of a file without a kind."""
_MIGRATIONS_TABLE: Final = "schema_migrations"
"""Applied migrations that a version must know: it refuses to start if this table has a number without a file."""
_APPLIED_BEFORE: Final = "schema_migrations_before"
"""Applied migrations that a version need not know. A separate table, as the first versions refuse unknown numbers."""
_CREATE_TABLES: Final = "".join(
    f"""
create table if not exists {table} (
    number integer primary key,
    name text not null,
    sha256 text not null,
    applied_at timestamptz not null default now()
);
"""
    for table in (_MIGRATIONS_TABLE, _APPLIED_BEFORE)
)
_CONNECTED_PROGRAMS: Final = """
select application_name from pg_stat_activity where datname = current_database() and application_name like $1
"""
_log: Final = logs.get("migrator")


class MigrationRefusedError(Exception):
    """The database and this service's files do not match. Nothing was changed; the service must not start."""


class MigrationKind(StrEnum):
    """When a migration is applied."""

    FOUNDATION = "foundation"
    BEFORE = "before"
    AFTER = "after"


@dataclass(frozen=True)
class Migration:
    """One file: its number, its name, its SQL, and when it is applied."""

    number: int
    name: str
    sql: str
    kind: MigrationKind = MigrationKind.FOUNDATION

    @property
    def sha256(self) -> str:
        """The checksum of the SQL, which reveals an edited file."""
        return hashlib.sha256(self.sql.encode()).hexdigest()

    @property
    def table(self) -> str:
        """The table that records that it was applied."""
        return _APPLIED_BEFORE if self.kind is MigrationKind.BEFORE else _MIGRATIONS_TABLE


@dataclass(frozen=True)
class AppliedMigrations:
    """The applied migrations that a database has recorded: checksums by number."""

    must_be_known: Mapping[int, str]
    """A version without a file for one of them refuses to start."""
    may_be_unknown: Mapping[int, str]


def read_migrations(directory: Traversable | None = None) -> list[Migration]:
    """The files, in order. Raises `MigrationRefusedError` if a number is missing, or a file has no kind."""
    migrations = []
    for file in (directory or resources.files("event_ingest.migrations")).iterdir():
        match = _FILE.match(file.name)
        if match:
            kind = MigrationKind(match[3] or MigrationKind.FOUNDATION)
            migrations.append(Migration(int(match[1]), match[2], file.read_text(encoding="utf-8"), kind))
    migrations.sort(key=lambda migration: migration.number)
    if [migration.number for migration in migrations] != list(range(1, len(migrations) + 1)):
        raise MigrationRefusedError(f"migrations must be numbered 1, 2, 3 …: {[m.number for m in migrations]}")
    if misnamed := [
        migration.number
        for migration in migrations
        if (migration.kind is MigrationKind.FOUNDATION) != (migration.number <= _LAST_FOUNDATION_NUMBER)
    ]:
        raise MigrationRefusedError(f"a migration's name ends with .before.sql or .after.sql: {misnamed}")
    return migrations


def migrations_before_new_code(migrations: Sequence[Migration]) -> list[Migration]:
    """The migrations that are applied before the code of this version runs.

    They are all but the ones of kind `after` at the end, which belong to this version. Migrations of kind `after` of
    earlier versions are applied, too. So each version must number its `before` migrations lower than its `after` ones.
    """
    last = max(
        (position for position, migration in enumerate(migrations, 1) if migration.kind is not MigrationKind.AFTER),
        default=0,
    )
    return list(migrations[:last])


def unapplied_migrations(migrations: Sequence[Migration], applied: AppliedMigrations) -> list[Migration]:
    """The migrations still to be applied. Raises `MigrationRefusedError` if the applied ones do not match the files."""
    known = {migration.number: migration for migration in migrations}
    for number in applied.must_be_known:
        if number not in known:
            raise MigrationRefusedError(f"the database has migration {number}; this service is too old for it: upgrade")
    checksums = {**applied.must_be_known, **applied.may_be_unknown}
    for number, checksum in checksums.items():
        if number in known and known[number].sha256 != checksum:
            raise MigrationRefusedError(
                f"migration {number} ({known[number].name}) was edited after it was applied; "
                "restore the file and add a new one"
            )
    missing = [migration for migration in migrations if migration.number not in checksums]
    if missing and checksums and missing[0].number < max(checksums):
        raise MigrationRefusedError(f"migration {missing[0].number} was not applied, but {max(checksums)} is applied")
    return missing


async def migrate(
    connection: Connection, migrations: Sequence[Migration] | None = None, *, after: bool = True
) -> list[int]:
    """Apply the missing migrations, and return the numbers of those that this process has applied.

    Several processes may call it at once. Without `after`, only those are applied that the previous version can run
    with. Raises `MigrationRefusedError`; an error in a file leaves the database as it was before that file.
    """
    known = read_migrations() if migrations is None else migrations
    selected = list(known) if after else migrations_before_new_code(known)
    numbers = {migration.number for migration in selected}
    done: list[int] = []
    while (number := await _apply_next(connection, known, numbers)) is not None:
        done.append(number)
    return done


async def migrate_before(connection: Connection) -> list[int]:
    """Apply the missing migrations that the previous version can run with.

    If the database has no tables yet, all migrations are applied, unless an older version is connected.
    """
    is_new = await connection.fetchval("select to_regclass('events') is null")
    done = await migrate(connection, after=False)
    return done + await migrate(connection) if is_new and not await count_older(connection) else done


async def _apply_next(connection: Connection, migrations: Sequence[Migration], numbers: Collection[int]) -> int | None:
    """Apply the first missing migration of `numbers`, in one transaction. Returns its number; None if none is missing.

    The lock is that of the transaction, because a pooler may give each transaction another session.
    """
    async with connection.transaction():
        await connection.execute("select pg_advisory_xact_lock($1)", _LOCK_ID)
        await connection.execute(_CREATE_TABLES)
        todo = [
            migration
            for migration in unapplied_migrations(migrations, await _applied_migrations(connection))
            if migration.number in numbers
        ]
        if todo:
            await _apply(connection, todo[0])
    if todo:
        _log.info("migration applied", number=todo[0].number, migration=todo[0].name)
    return todo[0].number if todo else None


async def pending_migrations(connection: Connection) -> list[Migration]:
    """The migrations still to be applied, of both kinds. Raises `MigrationRefusedError`."""
    return unapplied_migrations(read_migrations(), await _applied_migrations(connection))


async def missing_migrations(connection: Connection) -> list[Migration]:
    """The missing migrations without which this version can't run. An upgrade may apply the others much later."""
    needed = {migration.number for migration in migrations_before_new_code(read_migrations())}
    return [migration for migration in await pending_migrations(connection) if migration.number in needed]


async def count_older(connection: Connection) -> int:
    """The number of connections from an event-ingest of an older version.

    The `application_name` of a connection has the number of the last migration that its version knows.
    """
    rows = await connection.fetch(_CONNECTED_PROGRAMS, f"{APPLICATION_NAME}%")
    numbers = (row["application_name"].removeprefix(APPLICATION_NAME).strip() for row in rows)
    last = read_migrations()[-1].number
    return sum(not number.isdecimal() or int(number) < last for number in numbers)


async def _applied_migrations(connection: Connection) -> AppliedMigrations:
    return AppliedMigrations(
        await _read_checksums(connection, _MIGRATIONS_TABLE), await _read_checksums(connection, _APPLIED_BEFORE)
    )


async def _read_checksums(connection: Connection, table: str) -> dict[int, str]:
    rows = await connection.fetch(f"select number, sha256 from {table}")  # noqa: S608  # a constant name
    return {row["number"]: row["sha256"] for row in rows}


async def _apply(connection: Connection, migration: Migration) -> None:
    try:
        await connection.execute("set local statement_timeout = 0")  # a migration may take any time
        await connection.execute(migration.sql, timeout=86_400)
        await connection.execute(
            f"insert into {migration.table} (number, name, sha256) values ($1, $2, $3)",  # noqa: S608  # constant name
            migration.number,
            migration.name,
            migration.sha256,
        )
    except asyncpg.SyntaxOrAccessError as error:
        raise MigrationRefusedError(f"migration {migration.number} ({migration.name}): {error}") from error
