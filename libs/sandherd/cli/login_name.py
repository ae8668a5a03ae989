"""Who uses the command, for what is recorded of a decision."""

import getpass


def login_name() -> str | None:
    """The login name of the user, or None."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a user without a name, as in a container
        return None
