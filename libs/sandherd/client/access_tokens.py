"""Access tokens of the HTTP API: create, list, revoke. The text of a token never leaves the client."""

import hashlib
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from sandherd.client.connection import Connection
from sandherd.client.errors import checked_name, made
from sandherd.contracts import requests

if TYPE_CHECKING:
    from sandherd.contracts.records import AccessRole

DEFAULT_LIFETIME: Final = 90 * 86_400
_BYTES: Final = 32


@dataclass(frozen=True)
class NewToken:
    """A new access token, and its text, which is not stored anywhere."""

    view: "requests.TokenView"
    text: str


class TokenOperations:
    """The methods of `Herd` about access tokens. Every method raises `HerdError`."""

    connection: Connection

    async def create_token(
        self, name: str, role: "AccessRole", *, lifetime: int = DEFAULT_LIFETIME, by: str | None = None
    ) -> NewToken:
        """Create an access token for the project, valid for `lifetime` seconds. Its text is only returned here."""
        project = checked_name(self.connection.project, "project")
        text = f"shd_{project}_{secrets.token_urlsafe(_BYTES)}"
        digest = hashlib.sha256(text.encode()).hexdigest()
        request = made(
            requests.CreateToken, name=name, role=role, sha256=digest, lifetime_seconds=lifetime, created_by=by
        )
        return NewToken(await self.connection.request(request), text)

    async def tokens(self) -> "requests.TokenList":
        """The project's access tokens, without their texts."""
        return await self.connection.request(requests.ListTokens())

    async def revoke_token(self, name: str) -> "requests.TokenView":
        """Revoke an access token. Open streams of its holder end within seconds."""
        return await self.connection.request(made(requests.RevokeToken, name=name))
