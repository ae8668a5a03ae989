"""The user ids that a local Postgres has, or had, when root starts it."""

import os
import pwd
from typing import Final

NAME: Final = "sandherd-postgres"
"""If a system user of this name exists, it is used instead of the reserved id."""
RESERVED: Final = 61057
"""Between the ranges of systemd (UIDS-GIDS.md) and of login users; below 65536, so that rootless containers have it."""
_BEFORE: Final = "nobody"
"""The user that root ran Postgres as until version 0.1: the files of such a server are taken over at the next start."""


def earlier_users() -> frozenset[int]:
    """The users that an earlier version ran the server as, if root started it."""
    return frozenset(_ids(_BEFORE) if os.geteuid() == 0 else ())


def data_owners() -> frozenset[int]:
    """Who may own the data, besides ourselves: the user of the server, of this version or an earlier one."""
    return earlier_users() | {RESERVED} | _ids(NAME)


def _ids(name: str) -> set[int]:
    try:
        return {pwd.getpwnam(name).pw_uid}
    except KeyError:
        return set()
