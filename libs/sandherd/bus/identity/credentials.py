"""Reads and writes credentials files as the NATS tools do: a user's token and the seed of its key in one file."""

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from sandherd.bus.auth.inboxes import USER_PRINCIPALS, inbox
from sandherd.bus.identity.keys import read_claims
from sandherd.contracts.principals import Principal
from sandherd.private_files import write_file

_FILE_FORMAT: Final = """-----BEGIN NATS USER JWT-----
{token}
------END NATS USER JWT------

************************* IMPORTANT *************************
NKEY Seed printed below can be used to sign and prove identity.
NKEYs are sensitive and should be treated as secrets.

-----BEGIN USER NKEY SEED-----
{seed}
------END USER NKEY SEED------

*************************************************************
"""


@dataclass(frozen=True)
class Bearer:
    """The user of a token. `inbox` is the prefix of the reply subjects that it may subscribe to."""

    public_key: str
    name: str
    principal: Principal
    project: str | None
    inbox: str
    expires_at: datetime | None = None
    issued_at: datetime | None = None


def credentials_text(token: str, seed: str) -> str:
    """The content of a credentials file."""
    return _FILE_FORMAT.format(token=token, seed=seed)


def parts_of(credentials: str) -> tuple[str, str]:
    """The token and the seed in a credentials file's content."""
    token = credentials.partition("-----BEGIN NATS USER JWT-----")[2].partition("------END")[0].strip()
    seed = credentials.partition("-----BEGIN USER NKEY SEED-----")[2].partition("------END")[0].strip()
    return token, seed


def write_secret(path: Path, text: str) -> None:
    """Write a file that only its owner may read. The write is atomic."""
    write_file(path, text)


def bearer(credentials: str) -> Bearer:
    """The user in the content of a credentials file, or in a token.

    Raises `ValueError` if it is neither, or not the token of a herd's user.
    """
    _, title, rest = credentials.partition("-----BEGIN NATS USER JWT-----")
    return bearer_of_claims(read_claims(rest.partition("------END")[0] if title else credentials))


def bearer_of_claims(claims: dict[str, Any]) -> Bearer:
    """The user of a token with these claims. Raises `ValueError` if they are not the claims of a herd's user."""
    try:
        tags = dict(str(tag).split(":", 1) for tag in claims["nats"].get("tags", ()))
        principal = Principal(tags["principal"])
        key, name = str(claims["sub"]), str(claims["name"])
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise ValueError("not a credential of a herd") from error
    is_user = principal in USER_PRINCIPALS
    expires_at, issued_at = _moment(claims.get("exp")), _moment(claims.get("iat"))
    prefix = inbox(principal, key if is_user else name)
    return Bearer(key, name, principal, tags.get("project"), prefix, expires_at, issued_at)


def _moment(seconds: Any) -> datetime | None:
    return datetime.fromtimestamp(float(seconds), UTC) if seconds else None
