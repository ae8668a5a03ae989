"""The login name of the user, which is recorded with the user's decisions."""

import getpass


def login_name() -> str | None:
    """The login name of the user; None if the user has no name."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # the user id has no name, as in some containers
        return None
