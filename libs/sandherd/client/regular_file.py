"""Opens regular local files for reading; refuses pipes, devices and folders."""

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from sandherd.client.errors import HerdError
from sandherd.contracts.errors import Code


@contextmanager
def open_regular_file(path: Path) -> Iterator[IO[bytes]]:
    """Open a regular file. Raises `HerdError` for anything else, because a read from it may wait or never end."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise HerdError.of(
            Code.INVALID_FIELD,
            f"{path} is neither a file nor a folder",
            field="path",
            remedy="write its contents to a file, and copy that",
        )
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb", buffering=0) as file:
        yield file
