"""Opens sessions of the history's database: selects the host and the settings, for Postgres itself or a pooler."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final
from urllib.parse import parse_qs, quote, urlencode, urlsplit, urlunsplit

import asyncpg

CONNECT_TIMEOUT: Final = 3.0
"""Timeout of connecting to one host, in seconds."""
ONE_CORE: Final = MappingProxyType({"max_parallel_workers_per_gather": "0", "jit": "off"})
"""Settings of sessions for requests. With them, a request uses only one core."""
_DURABLE_COMMITS: Final = ("on", "remote_apply")
"""Values of `synchronous_commit` with which a confirmed transaction is on disk."""


class DatabaseSettingError(Exception):
    """A setting of the server could cause the loss of acknowledged events. The message names the fix."""


class DatabaseHosts:
    """The hosts of a URL, of which one is the primary. The one that accepted the last session is tried first.

    asyncpg has one timeout for all hosts of a URL. So it never tries the second host if the first does not respond at
    all, as after a failure of its machine.
    """

    def __init__(self, url: str) -> None:
        self._urls = split_hosts(url)

    @property
    def timeout(self) -> float:
        """The maximum time to connect, in seconds."""
        return CONNECT_TIMEOUT * len(self._urls)

    async def connect(self, _url: str = "", **arguments: Any) -> Any:
        """A connection. Takes arguments of `asyncpg.connect`. Raises the error of the last host that was tried."""
        last_error: Exception | None = None
        for url in list(self._urls):
            try:
                connection = await asyncpg.connect(url, **{**arguments, "timeout": CONNECT_TIMEOUT})
            except (asyncpg.PostgresError, asyncpg.InternalClientError, OSError, TimeoutError) as error:
                last_error = error
            else:
                self._urls.remove(url)
                self._urls.insert(0, url)
                return connection
        raise last_error or asyncpg.InterfaceError("the URL of the database has no host")


def split_hosts(url: str) -> list[str]:
    """One URL for each host of a URL, which may name several hosts as in libpq. Pure."""
    parts = urlsplit(url)
    user, at, hosts = parts.netloc.rpartition("@")
    query = parse_qs(parts.query, keep_blank_values=True)
    if "," in hosts:
        return [urlunsplit(parts._replace(netloc=f"{user}{at}{host}")) for host in hosts.split(",")]
    option_hosts, ports = (query.get(name, [""])[0].split(",") for name in ("host", "port"))
    if len(option_hosts) == 1 or len(ports) not in {1, len(option_hosts)}:
        return [url]
    ports = ports * len(option_hosts) if len(ports) == 1 else ports
    return [_with_host(url, host, port) for host, port in zip(option_hosts, ports, strict=True)]


def _with_host(url: str, host: str, port: str) -> str:
    base, _, options = url.partition("?")
    query = {name: values[0] for name, values in parse_qs(options, keep_blank_values=True).items()}
    new_query = query | {"host": host} | ({"port": port} if port else {})
    return f"{base}?{urlencode(new_query, quote_via=quote, safe='/')}"


def server_settings(name: str, timeout: float, settings: Mapping[str, str], *, pooled: bool) -> dict[str, str]:
    """The settings with which a session begins. A pooler accepts only settings that it can set for each client."""
    basic = {"application_name": name, "timezone": "UTC"}
    if pooled:
        return basic
    return {
        **basic,
        "statement_timeout": str(int(timeout * 1000)),
        "idle_in_transaction_session_timeout": str(int(timeout * 2000)),
        # Acknowledged events are on disk, independent of the server's own setting.
        "synchronous_commit": "on",
        **settings,
    }


def statement_cache(*, pooled: bool) -> dict[str, Any]:
    """Arguments of `asyncpg.connect`. Prepared statements are not cached if a pooler may change the session."""
    return {"statement_cache_size": 0} if pooled else {}


def session_pool(hosts: DatabaseHosts, size: int, timeout: float, settings: Mapping[str, str], *, pooled: bool) -> Any:
    """An asyncpg pool of at most `size` sessions, whose statements end after `timeout` seconds."""
    connect: Any = hosts.connect
    return asyncpg.create_pool(
        connect=connect,
        min_size=0,
        max_size=size,
        command_timeout=timeout + 0.5,
        max_inactive_connection_lifetime=300,
        reset=_skip_reset,
        server_settings=dict(settings),
        **statement_cache(pooled=pooled),
    )


async def _skip_reset(_connection: Any) -> None:
    """Skip asyncpg's reset, which costs a round trip each time. These connections have no state to reset."""


async def check_durability(connection: Any) -> None:
    """Raises `DatabaseSettingError` if Postgres would confirm transactions that are not on disk."""
    value = await connection.fetchval("select current_setting('synchronous_commit')")
    if value not in _DURABLE_COMMITS:
        raise DatabaseSettingError(
            f"synchronous_commit is {value}, so a failure would lose stored events: "
            "`alter role … set synchronous_commit = on`, then `reconnect` in the pooler's console"
        )


def describe_error(error: Exception) -> str:
    """The error in one line. It names the fix if the URL is that of a pooler and the settings do not state that."""
    if isinstance(error, asyncpg.ProtocolViolationError) and "startup parameter" in str(error):
        return f"{error}: a pooler needs SANDHERD_DATABASE_POOLED=true"
    return f"{type(error).__name__}: {str(error).splitlines()[0]}" if str(error) else type(error).__name__
