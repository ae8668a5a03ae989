"""What can be wrong with an archive: one typed error with its kind and a remedy."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import Final


class ArchiveFault(StrEnum):
    """Why a day can't be archived or restored."""

    FULL = "full"
    UNREACHABLE = "unreachable"
    DENIED = "denied"
    MISSING = "missing"
    WRONG_DIGEST = "wrong_digest"
    INVALID = "invalid"
    NOT_INSTALLED = "not_installed"


_REMEDIES: Final = {
    ArchiveFault.FULL: "free space in the archive, or enlarge it; it is tried again each minute",
    ArchiveFault.UNREACHABLE: "make SANDHERD_HISTORY_ARCHIVE available and writable to event-ingest",
    ArchiveFault.DENIED: "check SANDHERD_S3_ACCESS_KEY_ID, its secret and SANDHERD_S3_REGION, and permit the key to "
    "list, read, write and delete objects there",
    ArchiveFault.MISSING: "restore the file from a backup of the archive",
    ArchiveFault.WRONG_DIGEST: "restore the file from a backup of the archive: it is not what was written",
    ArchiveFault.INVALID: "restore the file from a backup of the archive, or upgrade if a later version has written it",
    ArchiveFault.NOT_INSTALLED: "pip install 'sandherd-event-ingest[archive]'",
}
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class ArchiveError(Exception):
    """The archive can't be written or read. `fault` is the kind, and the text ends with what to do."""

    def __init__(self, fault: ArchiveFault, message: str) -> None:
        super().__init__(f"{message}; {_REMEDIES[fault]}")
        self.fault = fault


@contextmanager
def storage_errors(what: str) -> Iterator[None]:
    """Errors of a file system as `ArchiveError`; `what` is the file."""
    try:
        yield
    except FileNotFoundError as error:
        raise ArchiveError(ArchiveFault.MISSING, f"the archive has no {what}") from error
    except OSError as error:
        if error.errno in _FULL:
            raise ArchiveError(ArchiveFault.FULL, f"the archive has no space for {what}") from error
        reason = error.strerror or type(error).__name__
        raise ArchiveError(
            ArchiveFault.UNREACHABLE, f"{what} can't be written or read in the archive: {reason}"
        ) from error
