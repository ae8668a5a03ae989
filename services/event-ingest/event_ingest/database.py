"""The history's database: it may be away, and comes back by itself."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from enum import Enum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import asyncpg

from sandherd.contracts.errors import Code, ContractError
from sandherd.telemetry import logs

if TYPE_CHECKING:
    Connection: TypeAlias = asyncpg.Connection[Any] | asyncpg.pool.PoolConnectionProxy[Any]
    Pool: TypeAlias = asyncpg.Pool[Any]
else:
    Connection = Any
    Pool = Any

PULSE: Final = 1.0
"""How often the database is looked at, in seconds."""
WRITE_TIMEOUT: Final = 8.0
"""Under the consumer's `ack_wait`: what takes longer is delivered again anyway."""
READ_TIMEOUT: Final = 4.0
"""Under what an asker waits."""
LIGHT: Final = 4
"""Connections for requests that read a page."""
HEAVY: Final = 2
"""Connections for requests that may read all of a sandbox or a project."""
_ONE_CORE: Final = MappingProxyType({"max_parallel_workers_per_gather": "0", "jit": "off"})
"""A request may keep one core busy, and not several."""
CALLED: Final = "sandherd event-ingest"
"""What its connections are called in the database, with the last migration that it knows behind it."""
_CONNECT_TIMEOUT: Final = 3.0
_POISON: Final = frozenset({"22", "23", "54"})
"""SQLSTATE classes that speak of the data: data exception, constraint, program limit."""
_log: Final = logs.get("database")

Prepare = Callable[[Connection], Awaitable[None]]


class Fault(Enum):
    """What an error of the database means for what was being done."""

    AWAY = "away"
    """Nothing is wrong with the work: later."""
    CONFLICT = "conflict"
    """Another replica was in the way: at once again."""
    POISON = "poison"
    """The data itself: never."""


class DatabaseAwayError(Exception):
    """The database can't be used now."""


_NO_CONNECTION: Final = (
    DatabaseAwayError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    OSError,
    TimeoutError,
)


def fault_of(error: Exception) -> Fault | None:
    """What `error` means; None for an error that is not the database's."""
    if isinstance(error, asyncpg.InterfaceError) and isinstance(error, ValueError):
        return Fault.POISON  # a value that asyncpg can't encode
    if isinstance(error, asyncpg.TransactionRollbackError):
        return Fault.CONFLICT
    if isinstance(error, asyncpg.PostgresError):
        return Fault.POISON if (error.sqlstate or "")[:2] in _POISON else Fault.AWAY
    if isinstance(error, UnicodeError):
        return Fault.POISON
    return Fault.AWAY if isinstance(error, _NO_CONNECTION) else None


class Database:
    """Pools for writing, for light and for heavy requests and for looking after it: no kind holds up another."""

    def __init__(self, url: str, prepare: Prepare, *, knows: int = 0, writers: int = 3) -> None:
        """A pool with this many writing connections. `prepare` runs at every check and keeps the schema ready.

        `knows` is the number of the last migration of this version.
        """
        self._url = url
        self._prepare = prepare
        self._writers = writers
        self._called = f"{CALLED} {knows}"
        self._problem: str | None = "not looked at yet"
        self._back = asyncio.Event()
        self._looked = asyncio.Event()
        self._poked = asyncio.Event()
        self._write: Pool
        self._read: Pool
        self._heavy: Pool
        self._watch: Pool

    def problem(self) -> str | None:
        """None while the database answers; else why it can't be used."""
        return self._problem

    async def keep(self) -> None:
        """Look at the database for ever, so that it is known whether it is there. Runs until cancelled.

        Raises what `prepare` raises if it is not the database being away.
        """
        async with self._pools():
            while True:
                await self._look()
                self._poked.clear()
                try:
                    async with asyncio.timeout(PULSE):
                        await self._poked.wait()
                    await asyncio.sleep(PULSE / 10)
                except TimeoutError:
                    continue

    async def back(self, within: float) -> bool:
        """Wait until the database is there, at most so many seconds; returns whether it is."""
        try:
            async with asyncio.timeout(within):
                await self._back.wait()
        except TimeoutError:
            return False
        return True

    @asynccontextmanager
    async def writing(self) -> AsyncIterator[Connection]:
        """A connection to write with. Raises `DatabaseAwayError` at once while it is known to be away."""
        async with self._connection(lambda: self._write) as connection:
            yield connection

    @asynccontextmanager
    async def reading(self, *, heavy: bool = False) -> AsyncIterator[Connection]:
        """A connection to ask with; `heavy` ones are few and apart, for requests that read much.

        Raises `ContractError` (`unavailable`) when the database is away or too slow.
        """
        try:
            async with self._connection(lambda: self._heavy if heavy else self._read) as connection:
                yield connection
        except asyncpg.QueryCanceledError as error:
            raise ContractError(
                Code.UNAVAILABLE,
                f"the history took longer than {READ_TIMEOUT:.0f} s to answer",
                remedy="ask for less: name a sandbox, or set since and until",
            ) from error
        except Exception as error:  # narrowed by its fault; what is none of the database is raised again
            fault = fault_of(error)
            if fault is None:
                raise
            if fault is Fault.POISON:
                raise ContractError(Code.INVALID_FIELD, f"the history can't be asked that: {_said(error)}") from error
            raise ContractError(
                Code.UNAVAILABLE,
                f"the history's database is away ({_said(error)})",
                remedy="start Postgres, then ask again; what lives now is answered by the spawner without it",
            ) from error

    @asynccontextmanager
    async def _connection(self, pool: Callable[[], Pool]) -> AsyncIterator[Connection]:
        if not self._looked.is_set():  # right after the start it is not known yet
            with suppress(TimeoutError):
                async with asyncio.timeout(_CONNECT_TIMEOUT):
                    await self._looked.wait()
        if self._problem is not None:
            raise DatabaseAwayError(self._problem)
        try:
            async with pool().acquire(timeout=_CONNECT_TIMEOUT) as connection:
                yield connection
        except Exception as error:  # narrowed by its fault; what is none of the database is raised again
            if fault_of(error) is Fault.AWAY and not isinstance(error, asyncpg.QueryCanceledError):
                self._gone(error)
            raise

    def _gone(self, error: Exception) -> None:
        """Not believed at once: one bad connection is not the database. The next look is soon."""
        _log.warning("the database failed us", error=_said(error))
        self._poked.set()

    async def _look(self) -> None:
        try:
            async with self._watch.acquire(timeout=_CONNECT_TIMEOUT) as connection:
                await self._prepare(connection)
        except Exception as error:  # narrowed by its fault; what is none of the database is raised again
            if fault_of(error) is None:
                raise
            self._note(_said(error))
        else:
            self._note(None)

    def _note(self, problem: str | None) -> None:
        if (problem is None) != (self._problem is None):
            _log.info("the database is there" if problem is None else "the database is away", problem=problem)
        self._problem = problem
        self._looked.set()
        (self._back.clear if problem else self._back.set)()

    @asynccontextmanager
    async def _pools(self) -> AsyncIterator[None]:
        async with (
            self._pool(self._writers, WRITE_TIMEOUT) as self._write,
            self._pool(LIGHT, READ_TIMEOUT, _ONE_CORE) as self._read,
            self._pool(HEAVY, READ_TIMEOUT, _ONE_CORE) as self._heavy,
            self._pool(1, WRITE_TIMEOUT) as self._watch,
        ):
            yield

    def _pool(self, size: int, timeout: float, settings: Mapping[str, str] = MappingProxyType({})) -> Pool:
        return asyncpg.create_pool(
            self._url,
            min_size=0,
            max_size=size,
            command_timeout=timeout + 0.5,
            timeout=_CONNECT_TIMEOUT,
            max_inactive_connection_lifetime=300,
            reset=_keep_as_it_is,
            server_settings={
                "application_name": self._called,
                "statement_timeout": str(int(timeout * 1000)),
                "idle_in_transaction_session_timeout": str(int(timeout * 2000)),
                "timezone": "UTC",
                # What is acknowledged to the broker is on disk, whatever the server is set to.
                "synchronous_commit": "on",
                **settings,
            },
        )


async def _keep_as_it_is(_connection: Any) -> None:
    """Our connections hold no state that would have to be reset; asyncpg's own reset costs a round trip each time."""


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).splitlines()[0]}" if str(error) else type(error).__name__
