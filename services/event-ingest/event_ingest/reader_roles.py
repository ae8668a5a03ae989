"""Creates and drops roles of Postgres that read the views of `event_ingest.sql_views`, each for some projects.

    sandherd-event-ingest readers create ROLE --project PROJECT [--password-file FILE]
    sandherd-event-ingest readers drop ROLE
    sandherd-event-ingest readers list

The password is read from a file; `-` is standard input. Only its SCRAM verifier is sent to the server, so that the
password is in no argument, statement or log. Without a file the role has no password, and another method of
authentication has to be configured.
"""

import argparse
import base64
import hashlib
import hmac
import re
import secrets
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import asyncpg

from event_ingest.database import Connection
from event_ingest.sql_views import SCHEMA, VIEWS
from sandherd.contracts.names import FLEET, safe_name

CONNECTIONS: Final = 5
"""Maximum connections of a reader."""
_ROLE: Final = re.compile(r"[a-z_][a-z0-9_]{0,62}")
_PASSWORD: Final = re.compile(r"[ -~]{8,1000}")
"""ASCII only: other characters would have to be normalized as the server does it (SASLprep)."""
_ITERATIONS: Final = 4096  # of PBKDF2, the default of Postgres
_DEFAULTS: Final = {
    "search_path": SCHEMA,
    "default_transaction_read_only": "on",
    "statement_timeout": "60s",
    "idle_in_transaction_session_timeout": "60s",
}
"""Settings with which a reader's session begins. The reader may change them."""
_TEMPORARY_FILES: Final = "1GB"  # maximum of each process of a session
_VIEWS: Final = ", ".join(f"{SCHEMA}.{view.name}" for view in VIEWS)
# Functions that any role may execute, and that write, or acquire a lock for which event-ingest may wait.
_WRITING_FUNCTIONS: Final = r"""
select p.oid::regprocedure::text as function from pg_proc p
where p.pronamespace = 'pg_catalog'::regnamespace and has_function_privilege('public', p.oid, 'execute')
    and p.proname ~ '^(lo_.*|loread|lowrite|pg_(try_)?advisory_.*|pg_logical_emit_message)$'
"""
_OTHER_PERMISSIONS: Final = f"""
select 'it is a member of ' || r.rolname as found from pg_auth_members m join pg_roles r on r.oid = m.roleid
where m.member = $1::text::regrole
union all
select 'it may create roles or databases, replicate, or bypass row security' from pg_roles
where rolname = $1 and (rolsuper or rolcreaterole or rolcreatedb or rolreplication or rolbypassrls)
union all
select 'it may create temporary tables or schemas in the database'
where has_database_privilege($1, current_database(), 'temporary, create')
union all
select 'it may create in the schema ' || nspname from pg_namespace
where nspname !~ '^pg_' and has_schema_privilege($1, oid, 'create')
union all
select 'it may use ' || c.oid::regclass from pg_class c join pg_namespace n on n.oid = c.relnamespace
where n.nspname !~ '^pg_' and n.nspname not in ('information_schema', '{SCHEMA}')
    and c.relkind in ('r', 'p', 'v', 'm', 'f')
    and has_table_privilege($1, c.oid, 'select, insert, update, delete, truncate, references, trigger')
union all
select 'it may change ' || c.oid::regclass from pg_class c
where c.relnamespace = '{SCHEMA}'::regnamespace and c.relkind = 'v'
    and has_table_privilege($1, c.oid, 'insert, update, delete')
"""  # noqa: S608  # constant names
_END_SESSIONS: Final = """
select pg_terminate_backend(a.pid) from pg_stat_activity a
where a.datname = current_database() and a.usename in (select role::name from history_readers)
    and a.usename = coalesce($1::text::name, a.usename) and pg_has_role(current_user, a.usesysid, 'usage')
"""


class ReaderRefusedError(Exception):
    """A reader can't be created or dropped. Nothing was changed."""


def scram_verifier(password: str, salt: bytes) -> str:
    """The text that Postgres stores for a password (RFC 5803). Pure. Raises `ReaderRefusedError` if it is invalid."""
    if not _PASSWORD.fullmatch(password):
        raise ReaderRefusedError("the password must have 8 to 1000 characters of printable ASCII")
    salted = hashlib.pbkdf2_hmac("sha256", password.encode(), salt, _ITERATIONS)
    client = hmac.digest(salted, b"Client Key", "sha256")
    keys = (hashlib.sha256(client).digest(), hmac.digest(salted, b"Server Key", "sha256"))
    stored_key, server_key = (base64.b64encode(key).decode() for key in keys)
    return f"SCRAM-SHA-256${_ITERATIONS}:{base64.b64encode(salt).decode()}${stored_key}:{server_key}"


async def create_reader(
    connection: Connection, role: str, projects: Sequence[str], password: str | None = None
) -> list[str]:
    """Create a role that reads these projects, or replace the projects and the password of an existing reader.

    Returns the further permissions that the role has, because only a superuser can revoke them. Raises
    `ReaderRefusedError`.
    """
    name, project_names = _checked_role(role), sorted({_checked_project(project) for project in projects})
    verifier = None if password is None else scram_verifier(password, secrets.token_bytes(16))
    async with connection.transaction():
        await _create_role(connection, name, verifier)
        await connection.execute("delete from history_readers where role = $1", name)
        await connection.executemany(
            "insert into history_readers values ($1, $2)", [(name, project) for project in project_names]
        )
        is_superuser: bool = await connection.fetchval("select rolsuper from pg_roles where rolname = current_user")
        await _grant(connection, name)
        await _revoke_from_all(connection, name, is_superuser=is_superuser)
        if others := [row["found"] for row in await connection.fetch(_OTHER_PERMISSIONS, name)]:
            raise ReaderRefusedError(f"{name} would have other permissions: {'; '.join(others[:10])}")
    functions = [row["function"] for row in await connection.fetch(_WRITING_FUNCTIONS)]
    return [f"{len(functions)} functions that write or lock, such as {functions[0]}"] if functions else []


async def drop_reader(connection: Connection, role: str) -> None:
    """End the sessions of a reader, and drop it. Raises `ReaderRefusedError`."""
    name = _checked_role(role)
    if not await _is_reader(connection, name):
        raise ReaderRefusedError(f"{name} is not a reader")
    async with connection.transaction():
        await end_readers(connection, name)
        await connection.execute("delete from history_readers where role = $1", name)
        if await _exists(connection, name):
            database = await connection.fetchval("select quote_ident(current_database())")
            await connection.execute(f'revoke all on {_VIEWS} from "{name}"')
            await connection.execute(f'revoke all on schema {SCHEMA} from "{name}"')
            await connection.execute(f'revoke all on database {database} from "{name}"')
            await connection.execute(f'drop role "{name}"')


async def list_readers(connection: Connection) -> list[tuple[str, list[str]]]:
    """The readers, with their projects."""
    rows = await connection.fetch(
        "select role, array_agg(project order by project) as projects from history_readers group by role order by role"
    )
    return [(row["role"], row["projects"]) for row in rows]


async def end_readers(connection: Connection, role: str | None = None) -> None:
    """End the sessions of one reader, or of all readers: an open transaction would block changes of the tables."""
    await connection.fetch(_END_SESSIONS, role)


def add_command(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add `readers` to the arguments of the program."""
    parser = commands.add_parser("readers", help="roles that read the views for SQL")
    actions = parser.add_subparsers(dest="action", required=True)
    create = actions.add_parser("create", help="create a role, or replace its projects and password")
    create.add_argument("role")
    create.add_argument(
        "--project", action="append", required=True, help="a project that the role may read; repeatable"
    )
    create.add_argument(
        "--password-file", metavar="FILE", help="the file with the role's password; - is standard input"
    )
    actions.add_parser("drop", help="end the sessions of a role, and drop it").add_argument("role")
    actions.add_parser("list", help="list the roles with their projects")


async def run_command(connection: Connection, options: argparse.Namespace) -> str:
    """Run the command in the arguments. Returns the text to print. Raises `ReaderRefusedError`."""
    if options.action == "list":
        return "".join(f"{role} {','.join(projects)}\n" for role, projects in await list_readers(connection))
    if options.action == "drop":
        await drop_reader(connection, options.role)
        return f"dropped {options.role}\n"
    permissions = await create_reader(connection, options.role, options.project, _read_password(options.password_file))
    for permission in permissions:
        sys.stderr.write(f"sandherd-event-ingest: only a superuser can revoke from all roles: {permission}\n")
    return f"{options.role} reads {', '.join(options.project)}\n"


def _read_password(file: str | None) -> str | None:
    if file is None:
        return None
    try:
        text = sys.stdin.readline() if file == "-" else Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeError) as error:
        raise ReaderRefusedError(f"the file with the password can't be read: {type(error).__name__}") from error
    return text.removesuffix("\n")


def _checked_role(role: str) -> str:
    if not _ROLE.fullmatch(role) or role.startswith("pg_") or role in {"public", "none"}:
        raise ReaderRefusedError(
            "a role's name has at most 63 characters of a-z, 0-9 and _, and does not begin with a digit or pg_"
        )
    return role


def _checked_project(project: str) -> str:
    try:
        name = safe_name(project, "project")
    except ValueError as error:
        raise ReaderRefusedError(str(error)) from error
    if name == FLEET:
        raise ReaderRefusedError(f"{FLEET} is not a project: name each project")
    return name


async def _create_role(connection: Connection, name: str, verifier: str | None) -> None:
    attributes = f"login connection limit {CONNECTIONS}" + (f" password '{verifier}'" if verifier else "")
    if not await _exists(connection, name):
        no_attributes = "nosuperuser nocreatedb nocreaterole noreplication nobypassrls noinherit"
        await connection.execute(f'create role "{name}" with {no_attributes} {attributes}')
    elif await _is_reader(connection, name):
        await connection.execute(f'alter role "{name}" with {attributes}')
    else:
        raise ReaderRefusedError(f"the role {name} exists, and is not a reader: choose another name")


async def _grant(connection: Connection, name: str) -> None:
    database = await connection.fetchval("select quote_ident(current_database())")
    for setting, value in _DEFAULTS.items():
        await connection.execute(f"alter role \"{name}\" set {setting} = '{value}'")
    await connection.execute(f'grant connect on database {database} to "{name}"')
    await connection.execute(f'grant usage on schema {SCHEMA} to "{name}"')
    await connection.execute(f'grant select on {_VIEWS} to "{name}"')


async def _revoke_from_all(connection: Connection, name: str, *, is_superuser: bool) -> None:
    """Revoke from all roles but the owner of the tables what any role may do in a new database."""
    database = await connection.fetchval("select quote_ident(current_database())")
    await connection.execute(f"revoke temporary, create on database {database} from public")
    await connection.execute("revoke create on schema public from public")
    if not is_superuser:
        return
    await connection.execute(f"alter role \"{name}\" set temp_file_limit = '{_TEMPORARY_FILES}'")
    owner = await connection.fetchval(
        "select quote_ident(pg_get_userbyid(relowner)) from pg_class where oid = 'events'::regclass"
    )
    for row in await connection.fetch(_WRITING_FUNCTIONS):
        await connection.execute(f"grant execute on function {row['function']} to {owner}")
        await connection.execute(f"revoke execute on function {row['function']} from public")


async def _exists(connection: Connection, role: str) -> bool:
    return bool(await connection.fetchval("select exists (select from pg_roles where rolname = $1)", role))


async def _is_reader(connection: Connection, role: str) -> bool:
    return bool(await connection.fetchval("select exists (select from history_readers where role = $1)", role))


REFUSALS: Final = (ReaderRefusedError, asyncpg.SyntaxOrAccessError, asyncpg.DependentObjectsStillExistError)
"""Errors of these functions that mean that something is not permitted or not possible."""
