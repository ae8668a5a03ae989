"""Bringing the schema up to date: forward only, each file once, and never a file that was changed afterwards.

There are two kinds, and a file's name ends with its kind:

- `.before.sql` only adds what older code neither sees nor misses. It is applied before the new code runs, and the
  version before goes on working, and may be put back.
- `.after.sql` takes away, or tightens, what only the version before needs. It is applied when none of that runs.

The first five files are older than the kinds, and than any release.
"""

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Final

import asyncpg

from event_ingest.database import Connection
from sandherd.telemetry import logs

_LOCK: Final = 0x5A4D_4849_5354  # any number that nobody else uses
_FILE: Final = re.compile(r"^(\d{4})_([a-z0-9_]+)(?:\.(before|after))?\.sql$")
_FOUNDATION: Final = 5
"""The last number without a kind."""
_BOOK: Final = "schema_migrations"
"""What a version has to know to run on the schema: it refuses a number in here that it has no file for."""
_BOOK_BEFORE: Final = "schema_migrations_before"
"""What it need not know. A book of its own, as the first versions refuse every number that they don't know."""
_BOOKS: Final = "".join(
    f"""
create table if not exists {book} (
    number integer primary key,
    name text not null,
    sha256 text not null,
    applied_at timestamptz not null default now()
);
"""
    for book in (_BOOK, _BOOK_BEFORE)
)
_log: Final = logs.get("migrating")


class MigrationRefusedError(Exception):
    """The database and this service's files disagree. Nothing was changed; the service must not start."""


class Kind(StrEnum):
    """When a migration is applied."""

    FOUNDATION = "foundation"
    BEFORE = "before"
    AFTER = "after"


@dataclass(frozen=True)
class Migration:
    """One file: its number, its name, what it does, and when."""

    number: int
    name: str
    sql: str
    kind: Kind = Kind.FOUNDATION

    @property
    def sha256(self) -> str:
        """Of the text: what tells an edited file."""
        return hashlib.sha256(self.sql.encode()).hexdigest()

    @property
    def book(self) -> str:
        """Where it is written down that it was applied."""
        return _BOOK_BEFORE if self.kind is Kind.BEFORE else _BOOK


@dataclass(frozen=True)
class Applied:
    """What a database's books say: checksums by number."""

    must_be_known: Mapping[int, str]
    may_be_unknown: Mapping[int, str]


def read_migrations(directory: Traversable | None = None) -> list[Migration]:
    """The files, in order. Raises `MigrationRefusedError` if the numbers have a hole, or one has no kind."""
    found = []
    for file in (directory or resources.files("event_ingest.migrations")).iterdir():
        match = _FILE.match(file.name)
        if match:
            kind = Kind(match[3] or Kind.FOUNDATION)
            found.append(Migration(int(match[1]), match[2], file.read_text(encoding="utf-8"), kind))
    found.sort(key=lambda migration: migration.number)
    if [migration.number for migration in found] != list(range(1, len(found) + 1)):
        raise MigrationRefusedError(f"migrations must be numbered 1, 2, 3 …: {[m.number for m in found]}")
    if unkind := [one.number for one in found if (one.kind is Kind.FOUNDATION) != (one.number <= _FOUNDATION)]:
        raise MigrationRefusedError(f"a migration's name ends with .before.sql or .after.sql: {unkind}")
    return found


def before_new_code(migrations: Sequence[Migration]) -> list[Migration]:
    """What is applied before the code of this version runs.

    All but the last of the second kind, which are this version's own; an earlier version's are made up for. For that,
    a version's own of the first kind have to be numbered before its own of the second.
    """
    last = max((place for place, one in enumerate(migrations, 1) if one.kind is not Kind.AFTER), default=0)
    return list(migrations[:last])


def unapplied(migrations: Sequence[Migration], applied: Applied) -> list[Migration]:
    """What is still to be done, given what was. Raises `MigrationRefusedError`."""
    known = {migration.number: migration for migration in migrations}
    for number in applied.must_be_known:
        if number not in known:
            raise MigrationRefusedError(f"the database has migration {number}; this service is too old for it: upgrade")
    done = {**applied.must_be_known, **applied.may_be_unknown}
    for number, checksum in done.items():
        if number in known and known[number].sha256 != checksum:
            raise MigrationRefusedError(
                f"migration {number} ({known[number].name}) was edited after it was applied; "
                "put the file back and write a new one"
            )
    todo = [migration for migration in migrations if migration.number not in done]
    if todo and done and todo[0].number < max(done):
        raise MigrationRefusedError(f"migration {todo[0].number} was left out, but {max(done)} is applied")
    return todo


async def migrate(
    connection: Connection, migrations: Sequence[Migration] | None = None, *, after: bool = True
) -> list[int]:
    """Apply what is not applied yet, and return the numbers. Of several that start at once, one does it.

    Without `after`, only what the version before can run with. Raises `MigrationRefusedError`; an error in a file
    leaves the database as it was before that file.
    """
    known = read_migrations() if migrations is None else migrations
    wanted = list(known) if after else before_new_code(known)
    await connection.execute("select pg_advisory_lock($1)", _LOCK)
    try:
        await connection.execute(_BOOKS)
        numbers = {one.number for one in wanted}
        todo = [one for one in unapplied(known, await _applied(connection)) if one.number in numbers]
        for migration in todo:
            await _apply(connection, migration)
        return [migration.number for migration in todo]
    finally:
        if not connection.is_closed():
            await connection.execute("select pg_advisory_unlock($1)", _LOCK)


async def left(connection: Connection) -> list[Migration]:
    """What is not applied yet, of both kinds. Raises `MigrationRefusedError`."""
    return unapplied(read_migrations(), await _applied(connection))


async def _applied(connection: Connection) -> Applied:
    return Applied(await _written(connection, _BOOK), await _written(connection, _BOOK_BEFORE))


async def _written(connection: Connection, book: str) -> dict[int, str]:
    rows = await connection.fetch(f"select number, sha256 from {book}")  # noqa: S608  # a name of ours
    return {row["number"]: row["sha256"] for row in rows}


async def _apply(connection: Connection, migration: Migration) -> None:
    try:
        async with connection.transaction():
            await connection.execute("set local statement_timeout = 0")  # it may take as long as it takes
            await connection.execute(migration.sql, timeout=86_400)
            await connection.execute(
                f"insert into {migration.book} (number, name, sha256) values ($1, $2, $3)",  # noqa: S608  # a name of ours
                migration.number,
                migration.name,
                migration.sha256,
            )
    except asyncpg.SyntaxOrAccessError as error:
        raise MigrationRefusedError(f"migration {migration.number} ({migration.name}): {error}") from error
    _log.info("migrated", number=migration.number, migration=migration.name)
