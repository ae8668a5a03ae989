"""The error of a directory or bucket in which files are stored, with its kind and a remedy."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import Final


class StorageFault(StrEnum):
    """Why a file can't be written or read."""

    FULL = "full"
    UNREACHABLE = "unreachable"
    DENIED = "denied"
    MISSING = "missing"
    WRONG_DIGEST = "wrong_digest"
    INVALID = "invalid"
    NOT_INSTALLED = "not_installed"
    OTHER_KEY = "other_key"


_REMEDIES: Final = {
    StorageFault.FULL: "free space there, or enlarge it; it is tried again each minute",
    StorageFault.UNREACHABLE: "make the directory or bucket available and writable to event-ingest",
    StorageFault.DENIED: "check SANDHERD_S3_ACCESS_KEY_ID, its secret and SANDHERD_S3_REGION, and permit the key to "
    "list, read, write and delete objects there",
    StorageFault.MISSING: "restore the file from a backup",
    StorageFault.WRONG_DIGEST: "restore the file from a backup: it is not what was written",
    StorageFault.INVALID: "restore the file from a backup, or upgrade if a later version has written it",
    StorageFault.OTHER_KEY: "set SANDHERD_ARTIFACT_KEY to the key that it was stored with",
    StorageFault.NOT_INSTALLED: "pip install 'sandherd-event-ingest[archive]'",
}
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class StorageError(Exception):
    """A file can't be written or read. `fault` is the reason, and the text ends with a remedy after a semicolon."""

    def __init__(self, fault: StorageFault, message: str) -> None:
        super().__init__(f"{message}; {_REMEDIES[fault]}")
        self.fault = fault


@contextmanager
def storage_errors(what: str) -> Iterator[None]:
    """Raises errors of the file system as `StorageError`. `what` names the file in the message."""
    try:
        yield
    except FileNotFoundError as error:
        raise StorageError(StorageFault.MISSING, f"there is no {what}") from error
    except OSError as error:
        if error.errno in _FULL:
            raise StorageError(StorageFault.FULL, f"there is no space for {what}") from error
        reason = error.strerror or type(error).__name__
        raise StorageError(StorageFault.UNREACHABLE, f"{what} can't be written or read: {reason}") from error
