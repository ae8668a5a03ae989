"""Requests about access tokens and browser sessions of the HTTP API. Only hashes of their texts are stored."""

from typing import Annotated, ClassVar, Final

from pydantic import BaseModel, Field, StringConstraints

from sandherd.contracts.commands import Note
from sandherd.contracts.events.base import Digest
from sandherd.contracts.model import Model, Moment
from sandherd.contracts.names import SafeName
from sandherd.contracts.records import AccessRole, TokenKind
from sandherd.contracts.requests.base import Request

MAX_LIFETIME: Final = 366 * 86_400
"""Maximum lifetime of an access token, in seconds."""
CODE_LIFETIME: Final = 60
"""How long a one-time code is valid, in seconds."""
SESSION_LIFETIME: Final = 12 * 3600
"""Maximum lifetime of a browser's session, in seconds."""
User = Annotated[Note, Field(min_length=1, max_length=200)]
"""The user of a session: an e-mail address, `oidc:<subject>`, the name of a credential, or `token:<name>`."""


class TokenView(Model):
    """An access token without its text, which is not stored."""

    project: SafeName
    name: SafeName
    role: AccessRole
    created_at: Moment
    expires_at: Moment
    created_by: Note | None = None
    """Who created it, according to the client."""
    kind: TokenKind = "token"
    user: Note | None = None
    """The user of a session."""


class TokenList(Model):
    """The access tokens and sessions of a project, by name.

    Expired tokens are listed until another token is created.
    """

    tokens: list[TokenView]


class CreateToken(Request[TokenView]):
    """Create an access token for the project, of which only the hash is sent and stored."""

    Answer: ClassVar[type[BaseModel]] = TokenView
    type: ClassVar[str] = "spawner.create_token"
    name: SafeName
    """The name, unique in the project. A repeated request returns the same token."""
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
    """Revoke an access token or a session. It is refused from now on, and streams that it has opened end.

    Sessions that were created with a token end with it.
    """

    Answer: ClassVar[type[BaseModel]] = TokenView
    type: ClassVar[str] = "spawner.revoke_token"
    name: SafeName


class SignInCode(Model):
    """A one-time code for a browser is stored."""

    expires_at: Moment
    url: str | None = None
    """The address at which browsers open the gateway, if the settings have it."""


class CreateCode(Request[SignInCode]):
    """Create a one-time code, with which a browser can get a session of the project within a minute."""

    Answer: ClassVar[type[BaseModel]] = SignInCode
    type: ClassVar[str] = "spawner.create_code"
    role: AccessRole
    """The role of the session."""
    sha256: Digest
    """The SHA-256 of its whole text, `shc_<project>_<43 characters of base64url>`."""
    user: User | None = None
    """Who will use the session, according to the client."""


class CreateSession(Request[TokenView]):
    """Create a browser's session in exchange for a valid token, or for a one-time code, which is then used up.

    The session has the role of the token or code. A session of a token ends with the token.
    """

    Answer: ClassVar[type[BaseModel]] = TokenView
    type: ClassVar[str] = "spawner.create_session"
    sha256: Digest
    """The SHA-256 of the session's whole text, `shs_<project>_<43 characters of base64url>`."""
    proof: Annotated[str, StringConstraints(pattern="^sh[cd]_[a-z0-9-]{1,63}_[A-Za-z0-9_-]{43}$")] = Field(repr=False)
    """The text of the token or code; its hash, which is stored, does not entitle to a session."""


class EndSession(Request[TokenView]):
    """End a browser's session."""

    Answer: ClassVar[type[BaseModel]] = TokenView
    type: ClassVar[str] = "spawner.end_session"
    sha256: Digest


class SignIn(Request[TokenView]):
    """Create a browser's session for a user whom the OpenID provider of the herd's settings has identified.

    It is refused by a spawner without such a setting.
    """

    Answer: ClassVar[type[BaseModel]] = TokenView
    type: ClassVar[str] = "spawner.sign_in"
    sha256: Digest
    """The SHA-256 of the session's whole text."""
    role: AccessRole
    user: User
