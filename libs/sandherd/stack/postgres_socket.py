"""The directory of the local Postgres's socket. A module of its own: `status` needs no database driver."""

import hashlib
import os
import tempfile
from pathlib import Path
from typing import Final
from urllib.parse import parse_qs, urlsplit

_LONGEST_SOCKET: Final = 107 - len("/.s.PGSQL.5432")
"""A unix socket's path has at most 107 bytes (unix(7))."""
_SEPARATORS: Final = frozenset(',"')


def socket_directory(directory: Path) -> Path:
    """The socket's directory of a server with its files in `directory`.

    It is inside that, or, if the path is too long or has a character that separates directories in Postgres's setting,
    a short path in the temporary directory. Another process may have another temporary directory (`TMPDIR`), so it
    reads the directory of a running server from the database's URL (`recorded_directory`).
    """
    beside = directory.resolve() / "run"
    if len(os.fsencode(beside)) <= _LONGEST_SOCKET and not _SEPARATORS & set(str(beside)):
        return beside
    digest = hashlib.sha256(os.fsencode(directory.resolve())).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"sandherd-{digest}"


def recorded_directory(database_url: str) -> Path:
    """The socket's directory in a URL of the database, as the supervisor records it. Raises `KeyError` without one."""
    return Path(parse_qs(urlsplit(database_url).query)["host"][0])
