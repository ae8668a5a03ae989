"""The name and address of a database from its URL, without the user, password and options."""

import re
from typing import Final
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

_HOSTS: Final = re.compile(r"[A-Za-z0-9._:,\[\]-]*")
"""Matches names or addresses of hosts, with or without ports."""
_UNKNOWN_DATABASE: Final = "the database of DATABASE_URL"
_DEFAULT_ADDRESS: Final = "the default address"


def database_address(url: str) -> str:
    """A text such as `database sandherd at 10.0.0.5:5432`.

    If a part of the URL that looks like an address may be a part of a password, the text only names the setting.
    """
    try:
        parts = urlsplit(url)
        options = dict(parse_qsl(parts.query, keep_blank_values=True))
    except ValueError:
        return _UNKNOWN_DATABASE
    hosts = parts.netloc.rpartition("@")[2]
    if not _is_certain(parts, hosts):
        return _UNKNOWN_DATABASE
    name = unquote(parts.path.removeprefix("/")) or options.get("dbname") or options.get("database")
    return f"database {name} at {_hosts(hosts, options)}" if name else f"the database at {_hosts(hosts, options)}"


def named_problem(problem: str | None, url: str) -> str | None:
    """Why the database of this URL can't be used, with its name and address; None if it can."""
    return None if problem is None else f"{database_address(url)} is unavailable: {problem}"


def _is_certain(parts: SplitResult, hosts: str) -> bool:
    """Whether no part of the URL can be the end of a user name or password that contains an unescaped character."""
    is_url = bool(parts.scheme) and parts.path[:1] in {"", "/"} and not parts.fragment
    return is_url and _HOSTS.fullmatch(hosts) is not None and "@" not in f"{parts.path}{parts.query}"


def _hosts(hosts: str, options: dict[str, str]) -> str:
    """The hosts with their ports, or the directory of a socket."""
    port = options.get("port")
    address = hosts or options.get("host") or _DEFAULT_ADDRESS
    return f"{address}:{port}" if port and ":" not in address and not address.startswith("/") else address
