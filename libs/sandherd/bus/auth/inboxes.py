"""The reply subjects of each principal. A client needs nothing else of the permissions."""

from typing import Final

from sandherd.contracts.names import JOINER_SUFFIX
from sandherd.contracts.principals import Principal

USER_PRINCIPALS: Final = (Principal.CLIENT, Principal.SUBSCRIBER, Principal.OPERATOR)


def inbox(principal: Principal, name: str) -> str:
    """The prefix of a principal's reply subjects, without the last dot.

    `name` is the service's or the sandbox's; for the roles in `USER_PRINCIPALS` it is the public key: their names may
    collide.
    """
    return f"_INBOX_{name}{JOINER_SUFFIX if principal is Principal.JOINER else ''}"
