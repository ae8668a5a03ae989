"""A digest of the code that workers run, which shows whether a waiting worker has another version.

After an upgrade in place, a waiting worker has loaded modules of the previous version, and would load further modules
of the new version.
"""

import hashlib
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from sandherd.worker_bundle import NoWorkerError, own_files


@cache
def worker_code() -> str:
    """The digest of the worker's files at the first call; empty if no worker is installed here."""
    try:
        return digest_of(own_files())
    except NoWorkerError:
        return ""


def digest_of(files: Mapping[str, Path]) -> str:
    """A digest of files, by their names, sizes and times. Raises `OSError`."""
    found = hashlib.sha256()
    for name, path in sorted(files.items()):
        status = path.stat()
        found.update(f"{name} {status.st_size} {status.st_mtime_ns}\n".encode())
    return found.hexdigest()[:16]
