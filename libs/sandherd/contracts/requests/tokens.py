"""Requests about access tokens of the HTTP API: created by a client, which alone has their text."""

from typing import Annotated, ClassVar, Final

from pydantic import BaseModel, Field

from sandherd.contracts.commands import Note
from sandherd.contracts.events.base import Digest
from sandherd.contracts.model import Model, Moment
from sandherd.contracts.names import SafeName
from sandherd.contracts.records import AccessRole
from sandherd.contracts.requests.base import Request

MAX_LIFETIME: Final = 366 * 86_400
"""Maximum lifetime of an access token, in seconds."""


class TokenView(Model):
    """An access token without its text, which is not stored."""

    project: SafeName
    name: SafeName
    role: AccessRole
    created_at: Moment
    expires_at: Moment
    created_by: Note | None = None
    """Who created it, according to the client."""


class TokenList(Model):
    """The access tokens of a project, by name; also those that have expired, until another one is created."""

    tokens: list[TokenView]


class CreateToken(Request[TokenView]):
    """Create an access token for the project, of which only the hash is sent and stored."""

    Answer: ClassVar[type[BaseModel]] = TokenView
    type: ClassVar[str] = "spawner.create_token"
    name: SafeName
    """Unique in the project. The same request repeated is the same token."""
    role: AccessRole
    sha256: Digest
    """The SHA-256 of its whole text, `shd_<project>_<43 characters of base64url>`."""
    lifetime_seconds: Annotated[int, Field(ge=1, le=MAX_LIFETIME)]
    created_by: Annotated[Note, Field(max_length=200)] | None = None


class ListTokens(Request[TokenList]):
    """List access tokens."""

    Answer: ClassVar[type[BaseModel]] = TokenList
    type: ClassVar[str] = "spawner.tokens"


class RevokeToken(Request[TokenView]):
    """Revoke an access token: it is refused from now on, also on open streams."""

    Answer: ClassVar[type[BaseModel]] = TokenView
    type: ClassVar[str] = "spawner.revoke_token"
    name: SafeName
