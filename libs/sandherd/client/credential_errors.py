"""The error for a credentials file that can't be used, with a remedy."""

from pathlib import Path

from sandherd.client.errors import HerdError
from sandherd.contracts.errors import Code


def credential_error(credentials: Path, error: OSError | ValueError) -> HerdError:
    """The error for a file that does not exist, can't be read, or is not a credential of a herd."""
    if isinstance(error, OSError):
        reason = "no such file" if isinstance(error, FileNotFoundError) else error.strerror
        message = f"{credentials}: {reason}"
        remedy = "check --credentials, SANDHERD_CREDENTIALS, or the context that names it"
    else:
        message = f"{credentials} is not a credentials file of a herd: {error}"
        remedy = (
            "name a .creds file with --credentials, SANDHERD_CREDENTIALS or a context; without them, the credential of "
            "the local stack is used (`sandherd up`)"
        )
    return HerdError.of(Code.REFUSED, message, field="credentials", remedy=remedy)
