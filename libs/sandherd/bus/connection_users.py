"""Determines the user of a listed connection (CONNZ), only from fields that the broker has verified.

The client chooses some fields freely: `authorized_user` is any text (`user` or `nkey` in CONNECT). `jwt` is not
verified in a connection that was refused, and a second CONNECT replaces it. The broker itself sets `tags` and
`issuer_key` when it has verified a token, and `name_tag` if the connection has no account.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from sandherd.bus.identity.keys import read_verified_claims
from sandherd.contracts.principals import Principal

_UNKNOWN_KEY: Final = ""


@dataclass(frozen=True, slots=True)
class ConnectionUser:
    """The user of a connection. `expires` is a Unix second."""

    public_key: str
    """Empty if the broker has not verified the token that the connection had at its end."""
    principal: Principal
    project: str
    name: str
    expires: int | None


def user_of(row: Mapping[str, Any], *, is_open: bool) -> ConnectionUser | None:
    """The user of a connection in the broker's list. None if it was refused, or is not a user of this herd.

    Also None if the broker is about to close the connection because of a second CONNECT. The connection is then listed
    as closed.
    """
    tags: Sequence[str] = row.get("tags") or ()
    try:
        user, verified = _user_of_token(row.get("jwt", ""), row.get("issuer_key", ""))
        if list(verified) == list(tags):
            return user
    except (ValueError, KeyError):
        pass
    return None if is_open else _user_of_tags(tags, str(row.get("name_tag", "")))


@lru_cache(maxsize=8192)
def _user_of_token(token: str, issuer: str) -> tuple[ConnectionUser, tuple[str, ...]]:
    """The user of a token, and its tags.

    Raises `ValueError` or `KeyError` if it is not a valid token of a herd. Exceptions are not cached.
    """
    claims = read_verified_claims(token, issuer)
    tags = tuple(claims["nats"].get("tags") or ())
    principal, project = _principal_and_project(tags)
    return ConnectionUser(claims["sub"], principal, project, str(claims.get("name", "")), claims.get("exp")), tags


def _user_of_tags(tags: Sequence[str], name: str) -> ConnectionUser | None:
    try:
        return ConnectionUser(_UNKNOWN_KEY, *_principal_and_project(tags), name, None)
    except (ValueError, KeyError):
        return None


def _principal_and_project(tags: Sequence[str]) -> tuple[Principal, str]:
    values_by_name = dict(tag.split(":", 1) for tag in tags)
    return Principal(values_by_name["principal"]), values_by_name.get("project", "")
