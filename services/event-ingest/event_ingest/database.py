"""The history's database. When it has become unavailable, it is used again once it responds."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from enum import Enum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import asyncpg

from event_ingest.database_sessions import (
    ONE_CORE,
    DatabaseHosts,
    DatabaseSettingError,
    check_durability,
    describe_error,
    server_settings,
    session_pool,
    statement_cache,
)
from sandherd.contracts.errors import Code, ContractError
from sandherd.telemetry import logs

if TYPE_CHECKING:
    Connection: TypeAlias = asyncpg.Connection[Any] | asyncpg.pool.PoolConnectionProxy[Any]
    Pool: TypeAlias = asyncpg.Pool[Any]
else:
    Connection = Any
    Pool = Any

CHECK_SECONDS: Final = 1.0
"""Interval between checks of the database, in seconds."""
WRITE_TIMEOUT: Final = 8.0
"""Timeout of a statement that writes, in seconds. It is below the consumer's `ack_wait`, so a longer one has no use."""
READ_TIMEOUT: Final = 4.0
"""Timeout of a statement that reads, in seconds; below the timeout of a requester."""
LIGHT_CONNECTIONS: Final = 4
"""Number of connections for requests that read one page."""
HEAVY_CONNECTIONS: Final = 2
"""Number of connections for requests that may read all of a sandbox or a project."""
APPLICATION_NAME: Final = "sandherd event-ingest"
"""The `application_name` of connections; the number of the last migration of their version follows."""
_NARROW_REMEDY: Final = "narrow the request: name a sandbox, or set since and until"
_INVALID_DATA_CLASSES: Final = frozenset({"22", "23", "54"})
"""SQLSTATE classes that concern the data: data exception, constraint, program limit."""
_log: Final = logs.get("database")

Prepare = Callable[[Connection], Awaitable[bool]]
"""Prepares the schema, and returns whether rows are stored in their short form (`short_rows`)."""


class DatabaseFault(Enum):
    """What a database error means for the work that failed."""

    UNAVAILABLE = "unavailable"
    """The database is unavailable. Retry the work later."""
    CONFLICT = "conflict"
    """Another replica interfered. Retry the work at once."""
    POISON = "poison"
    """The data is invalid. Never retry the work."""


class DatabaseUnavailableError(Exception):
    """The database is unavailable."""


_NO_CONNECTION: Final = (
    DatabaseUnavailableError,
    DatabaseSettingError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    OSError,
    TimeoutError,
)


def classify_error(error: Exception) -> DatabaseFault | None:
    """The meaning of `error`; None for an error that is not the database's."""
    if isinstance(error, asyncpg.InterfaceError) and isinstance(error, ValueError):
        return DatabaseFault.POISON  # a value that asyncpg can't encode
    if isinstance(error, asyncpg.TransactionRollbackError):
        return DatabaseFault.CONFLICT
    if isinstance(error, asyncpg.PostgresError):
        return (
            DatabaseFault.POISON if (error.sqlstate or "")[:2] in _INVALID_DATA_CLASSES else DatabaseFault.UNAVAILABLE
        )
    if isinstance(error, UnicodeError):
        return DatabaseFault.POISON
    return DatabaseFault.UNAVAILABLE if isinstance(error, _NO_CONNECTION) else None


class Database:
    """Separate pools for writing, light requests, heavy requests and checks, so that they do not delay each other."""

    def __init__(
        self, url: str, prepare: Prepare, *, last_migration: int = 0, writers: int = 3, pooled: bool = False
    ) -> None:
        """`writers` is the number of connections for writing. `prepare` is called at every check.

        `last_migration` is the number of the last migration of this version. `pooled` states that `url` is a pooler's.
        """
        self._hosts = DatabaseHosts(url)
        self._pooled = pooled
        self._prepare = prepare
        self._writers = writers
        self._application_name = f"{APPLICATION_NAME} {last_migration}"
        self.stores_short_rows = False  # the last result of `prepare`
        self._problem: str | None = "not checked yet"
        self._available = asyncio.Event()
        self._checked = asyncio.Event()
        self._check_requested = asyncio.Event()
        self._write_pool: Pool
        self._read_pool: Pool
        self._heavy_pool: Pool
        self._check_pool: Pool
        self._maintained: set[Connection] = set()

    def problem(self) -> str | None:
        """Why the database can't be used; None if it can."""
        return self._problem

    async def run_checks(self) -> None:
        """Check the database periodically, so that its availability is known. Runs until cancelled.

        Raises the errors of `prepare`, except those which mean that the database is unavailable.
        """
        async with self._pools():
            while True:
                await self._check()
                self._check_requested.clear()
                try:
                    async with asyncio.timeout(CHECK_SECONDS):
                        await self._check_requested.wait()
                    await asyncio.sleep(CHECK_SECONDS / 10)  # many errors cause one check
                except TimeoutError:
                    continue

    async def wait_available(self, timeout: float) -> bool:
        """Wait at most `timeout` seconds until the database is available; returns whether it is."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                return await self._available.wait()
        return False

    @asynccontextmanager
    async def writing(self) -> AsyncIterator[Connection]:
        """A connection for writing. Raises `DatabaseUnavailableError` at once while it is known to be unavailable."""
        async with self._connection(lambda: self._write_pool) as connection:
            yield connection

    @asynccontextmanager
    async def maintaining(self) -> AsyncIterator[Connection]:
        """A new connection outside of the pools, without a timeout of statements. Raises the database's own errors.

        It is closed when the database becomes unavailable: a server that was replaced may never respond to a statement.
        """
        settings = {"application_name": self._application_name}
        connection = await self._hosts.connect(server_settings=settings, **statement_cache(pooled=self._pooled))
        self._maintained.add(connection)
        try:
            yield connection
        finally:
            self._maintained.discard(connection)
            connection.terminate()

    @asynccontextmanager
    async def locked(self, lock: int) -> AsyncIterator[bool]:
        """Acquire an advisory lock for the block; yields False if another replica has it.

        Raises the database's own errors.
        """
        # It is the lock of a transaction: that of a session could outlive this connection in a pooler.
        async with self.maintaining() as connection, connection.transaction():
            acquired: bool = await connection.fetchval("select pg_try_advisory_xact_lock($1)", lock)
            # Ends the portal of the previous statement: `create index concurrently` would wait for its snapshot.
            await connection.execute("select 1")
            yield acquired

    @asynccontextmanager
    async def reading(self, *, heavy: bool = False) -> AsyncIterator[Connection]:
        """A connection for a request. Requests that read much use a `heavy` connection, from a separate small pool.

        Raises `ContractError`: `unavailable` for a missing or slow database, `invalid_field` for an invalid value.
        """
        try:
            async with self._connection(lambda: self._heavy_pool if heavy else self._read_pool) as connection:
                yield connection
        except asyncpg.QueryCanceledError as error:
            text = f"the history request timed out after {READ_TIMEOUT:.0f} s"
            raise ContractError(Code.UNAVAILABLE, text, remedy=_NARROW_REMEDY) from error
        except Exception as error:  # narrowed by `classify_error`; others are raised again
            fault = classify_error(error)
            if fault is None:
                raise
            if fault is DatabaseFault.POISON:
                raise ContractError(Code.INVALID_FIELD, f"invalid history request: {describe_error(error)}") from error
            raise ContractError(
                Code.UNAVAILABLE,
                f"the history's database is unavailable ({describe_error(error)})",
                remedy="start Postgres, then retry; the spawner serves the live state without it",
            ) from error

    @asynccontextmanager
    async def _connection(self, pool: Callable[[], Pool]) -> AsyncIterator[Connection]:
        if not self._checked.is_set():  # right after the start, the state is unknown
            with suppress(TimeoutError):
                async with asyncio.timeout(self._hosts.timeout):
                    await self._checked.wait()
        if self._problem is not None:
            raise DatabaseUnavailableError(self._problem)
        try:
            async with pool().acquire(timeout=self._hosts.timeout) as connection:
                yield connection
        except Exception as error:  # narrowed by `classify_error`; others are raised again
            if classify_error(error) is DatabaseFault.UNAVAILABLE and not isinstance(error, asyncpg.QueryCanceledError):
                self._request_check(error)
            raise

    def _request_check(self, error: Exception) -> None:
        """Request a check soon. One broken connection alone does not mean that the database is unavailable."""
        _log.warning("database error, checking again", error=describe_error(error))
        self._check_requested.set()

    async def _check(self) -> None:
        try:
            async with self._check_pool.acquire(timeout=self._hosts.timeout) as connection:
                await check_durability(connection)
                self.stores_short_rows = await self._prepare(connection)
        except Exception as error:  # narrowed by `classify_error`; others are raised again
            if classify_error(error) is None:
                raise
            self._set_problem(describe_error(error))
        else:
            self._set_problem(None)

    def _set_problem(self, problem: str | None) -> None:
        if (problem is None) != (self._problem is None):
            if problem is None:
                _log.info("database available")
            else:
                _log.warning("database unavailable", problem=problem)
                for connection in list(self._maintained):
                    connection.terminate()
        self._problem = problem
        self._checked.set()
        (self._available.clear if problem else self._available.set)()

    @asynccontextmanager
    async def _pools(self) -> AsyncIterator[None]:
        async with (
            self._pool(self._writers, WRITE_TIMEOUT) as self._write_pool,
            self._pool(LIGHT_CONNECTIONS, READ_TIMEOUT, ONE_CORE) as self._read_pool,
            self._pool(HEAVY_CONNECTIONS, READ_TIMEOUT, ONE_CORE) as self._heavy_pool,
            self._pool(1, WRITE_TIMEOUT) as self._check_pool,
        ):
            yield

    def _pool(self, size: int, timeout: float, settings: Mapping[str, str] = MappingProxyType({})) -> Pool:
        all_settings = server_settings(self._application_name, timeout, settings, pooled=self._pooled)
        pool: Pool = session_pool(self._hosts, size, timeout, all_settings, pooled=self._pooled)
        return pool
