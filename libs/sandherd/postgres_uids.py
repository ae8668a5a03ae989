"""The user ids that a local Postgres runs as, in this version and earlier ones, if root starts it."""

import os
import pwd
from typing import Final

NAME: Final = "sandherd-postgres"
"""The system user that is used instead of the reserved id, if it exists."""
RESERVED: Final = 61057
"""The reserved id. It is in no range of systemd (UIDS-GIDS.md) or of login users. Rootless containers have it, because
it is below 65536."""
_BEFORE: Final = "nobody"
"""The user that Postgres ran as until version 0.1. The next start changes the owner of such a server's files."""


def earlier_users() -> frozenset[int]:
    """The user ids that an earlier version ran the server as; none unless root starts it now."""
    return frozenset(_ids(_BEFORE) if os.geteuid() == 0 else ())


def data_owners() -> frozenset[int]:
    """The user ids, besides our own, that may own the data: those of the server in this version and earlier ones."""
    return earlier_users() | {RESERVED} | _ids(NAME)


def _ids(name: str) -> set[int]:
    try:
        return {pwd.getpwnam(name).pw_uid}
    except KeyError:
        return set()
