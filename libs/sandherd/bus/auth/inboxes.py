"""The reply subjects of each principal.

They are in a separate module, because it is the only module about permissions that clients import.
"""

from typing import Final

from sandherd.contracts.names import JOINER_SUFFIX
from sandherd.contracts.principals import Principal

USER_PRINCIPALS: Final = (Principal.CLIENT, Principal.SUBSCRIBER, Principal.OPERATOR)


def inbox(principal: Principal, name: str) -> str:
    """The prefix of a principal's reply subjects, without the last dot.

    `name` is the name of the service or of the sandbox. For the principals in `USER_PRINCIPALS` it is the public key,
    because several users may have the same name. The prefix of a joiner ends with `-join`, because the worker has the
    same name: that of the sandbox.
    """
    return f"_INBOX_{name}{JOINER_SUFFIX if principal is Principal.JOINER else ''}"
