"""Access tokens of the HTTP API, and sign-in codes for browsers. Only hashes of their texts are sent to the herd."""

import hashlib
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from sandherd.client.connection import Connection
from sandherd.client.errors import checked_name, validated
from sandherd.contracts import requests

if TYPE_CHECKING:
    from sandherd.contracts.records import AccessRole

DEFAULT_LIFETIME_SECONDS: Final = 90 * 86_400
_TOKEN_BYTES: Final = 32


@dataclass(frozen=True)
class NewToken:
    """A new access token, and its text, which is not stored anywhere."""

    view: "requests.TokenView"
    text: str


@dataclass(frozen=True)
class NewCode:
    """A one-time code for a browser, and its text, which is not stored anywhere."""

    view: "requests.SignInCode"
    text: str


class TokenOperations:
    """The methods of `Herd` about access tokens. Every method raises `HerdError`."""

    connection: Connection

    async def create_token(
        self, name: str, role: "AccessRole", *, lifetime: int = DEFAULT_LIFETIME_SECONDS, by: str | None = None
    ) -> NewToken:
        """Create an access token for the project, valid for `lifetime` seconds. Its text is only returned here."""
        text, digest = self._new_secret("shd")
        request = validated(
            requests.CreateToken, name=name, role=role, sha256=digest, lifetime_seconds=lifetime, created_by=by
        )
        return NewToken(await self.connection.request(request), text)

    async def tokens(self) -> "requests.TokenList":
        """The project's access tokens and browsers' sessions, without their texts."""
        return await self.connection.request(requests.ListTokens())

    async def revoke_token(self, name: str) -> "requests.TokenView":
        """Revoke an access token and its sessions, or one session. Open streams of its holder end within seconds."""
        return await self.connection.request(validated(requests.RevokeToken, name=name))

    async def create_code(self, role: "AccessRole", *, user: str | None = None) -> NewCode:
        """Create a one-time code for a session of the project in a browser. It must be used within a minute."""
        text, digest = self._new_secret("shc")
        return NewCode(
            await self.connection.request(validated(requests.CreateCode, role=role, sha256=digest, user=user)), text
        )

    def _new_secret(self, prefix: str) -> tuple[str, str]:
        """A new text, and its hash."""
        text = f"{prefix}_{checked_name(self.connection.project, 'project')}_{secrets.token_urlsafe(_TOKEN_BYTES)}"
        return text, hashlib.sha256(text.encode()).hexdigest()
