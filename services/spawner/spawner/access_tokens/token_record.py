"""An access token, a session or a code as it is stored in the bucket `tokens`. Pure."""

from datetime import timedelta

from pydantic import AwareDatetime

from sandherd.contracts.events.base import Digest
from sandherd.contracts.names import SafeName, new_name
from sandherd.contracts.records import AccessRole, TokenKind
from sandherd.contracts.requests import CreateCode, CreateToken, SignIn, TokenView
from sandherd.contracts.requests.tokens import CODE_LIFETIME, SESSION_LIFETIME
from spawner.records.base_record import Record


class TokenRecord(Record):
    """An access token, session or code: the hash of its text, and its role.

    The gateway reads the record as `SharedAccessToken`.
    """

    token: SafeName
    """The name of the token, session or code."""
    sha256: Digest
    role: AccessRole
    created_at: AwareDatetime
    expires_at: AwareDatetime
    created_by: str | None = None
    kind: TokenKind = "token"
    user: str | None = None
    """The user of a code or session; None for a token."""
    issued_by: Digest | None = None
    """The hash of the token with which a session was created. The session ends when this token is revoked."""

    @property
    def name(self) -> str:
        """The second part of the key in the bucket: the hash, because the gateway knows only the token's text."""
        return self.sha256

    @property
    def source(self) -> str:
        """Unused, because this kind of record publishes no events."""
        return f"/sandherd/spawner/{self.token}"

    def event_ids(self) -> dict[str, str | None]:
        """Empty, because this kind of record publishes no events."""
        return {}

    def view(self) -> TokenView:
        """The token for replies, without its hash."""
        return TokenView(
            project=self.project,
            name=self.token,
            role=self.role,
            created_at=self.created_at,
            expires_at=self.expires_at,
            created_by=self.created_by,
            kind=self.kind,
            user=self.user,
        )


def new_token(project: str, request: CreateToken, now: AwareDatetime) -> TokenRecord:
    """The record of a new token."""
    return TokenRecord(
        project=project,
        token=request.name,
        sha256=request.sha256,
        role=request.role,
        created_at=now,
        expires_at=now + timedelta(seconds=request.lifetime_seconds),
        created_by=request.created_by,
    )


def new_code(project: str, request: CreateCode, now: AwareDatetime) -> TokenRecord:
    """The record of a one-time code."""
    return TokenRecord(
        project=project,
        token=new_name("code"),
        sha256=request.sha256,
        role=request.role,
        created_at=now,
        expires_at=now + timedelta(seconds=CODE_LIFETIME),
        kind="code",
        user=request.user,
    )


def new_session(proof: TokenRecord, sha256: str, now: AwareDatetime) -> TokenRecord:
    """The record of a session for the holder of a token or code. With a token, it expires no later than the token."""
    expires_at = now + timedelta(seconds=SESSION_LIFETIME)
    is_by_token = proof.kind == "token"
    return TokenRecord(
        project=proof.project,
        token=new_name("session"),
        sha256=sha256,
        role=proof.role,
        created_at=now,
        expires_at=min(expires_at, proof.expires_at) if is_by_token else expires_at,
        created_by=f"token:{proof.token}" if is_by_token else None,
        kind="session",
        user=f"token:{proof.token}" if is_by_token else proof.user,
        issued_by=proof.sha256 if is_by_token else None,
    )


def new_user_session(project: str, request: SignIn, now: AwareDatetime) -> TokenRecord:
    """The record of a session for a user of the OpenID provider."""
    return TokenRecord(
        project=project,
        token=new_name("session"),
        sha256=request.sha256,
        role=request.role,
        created_at=now,
        expires_at=now + timedelta(seconds=SESSION_LIFETIME),
        created_by="OpenID provider",
        kind="session",
        user=request.user,
    )
