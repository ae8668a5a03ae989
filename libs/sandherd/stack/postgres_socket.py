"""The directory of the local Postgres's socket. It is a separate module, so that `status` loads no database driver."""

import hashlib
import os
import tempfile
from pathlib import Path
from typing import Final
from urllib.parse import parse_qs, urlsplit

_MAX_DIRECTORY_BYTES: Final = 107 - len("/.s.PGSQL.5432")
"""Maximum bytes of the socket's directory: the path of a Unix socket has at most 107 bytes (unix(7))."""
_SEPARATORS: Final = frozenset(',"')


def socket_directory(directory: Path) -> Path:
    """The directory of the socket of a server whose files are in `directory`.

    It is `run` in that directory. If its path is too long, or has a character that separates directories in Postgres's
    setting, it is a short path in the temporary directory. Other processes may have another temporary directory
    (`TMPDIR`), so they take the directory from the URL of the database (`recorded_directory`).
    """
    beside = directory.resolve() / "run"
    if len(os.fsencode(beside)) <= _MAX_DIRECTORY_BYTES and not _SEPARATORS & set(str(beside)):
        return beside
    digest = hashlib.sha256(os.fsencode(directory.resolve())).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"sandherd-{digest}"


def recorded_directory(database_url: str) -> Path:
    """The socket's directory, from the recorded URL of a database. Raises `KeyError` if the URL has none."""
    return Path(parse_qs(urlsplit(database_url).query)["host"][0])
