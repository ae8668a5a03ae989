"""Access to the API: access tokens, read from the spawner's bucket at each use, and what each role permits."""

import hashlib
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, get_args

from gateway.problems import problem_of
from sandherd.bus.broker_errors import BROKER_ERRORS
from sandherd.bus.connection import Bus
from sandherd.bus.kv import read_record
from sandherd.contracts.errors import Code, Problem
from sandherd.contracts.records import AccessRole, SharedAccessToken, TokenKind

_CREDENTIAL_PATTERN: Final = re.compile(r"(sh[dsc])_([a-z0-9][a-z0-9-]{0,62})_[A-Za-z0-9_-]{43}")
_PREFIXES: Final[dict[TokenKind, str]] = {"token": "shd", "session": "shs", "code": "shc"}
"""The prefix of the texts of each kind, so that a text of one kind can't be used as another kind."""
ROLE_RANKS: Final[Mapping[AccessRole, int]] = {role: rank for rank, role in enumerate(get_args(AccessRole))}
"""The rank of each role; a role with a higher rank permits more."""


class AccessError(Exception):
    """The refusal of a request, with a problem and the status of the response."""

    def __init__(self, problem: Problem, status: int) -> None:
        super().__init__(problem.message)
        self.problem = problem
        self.status = status


@dataclass(frozen=True)
class PresentedCredential:
    """A token, session or code as a request presents it: its project, and the hash that it is stored under."""

    kind: TokenKind
    project: str
    digest: str


@dataclass(frozen=True)
class Caller:
    """The holder of an access token, or the user of a session."""

    project: str
    token: str  # its name
    role: AccessRole
    digest: str  # the hash that its record is stored under
    expires_at: datetime
    kind: TokenKind = "token"
    user: str | None = None

    @property
    def name(self) -> str:
        """The caller's name in commands and events: its user, or `token:` and the name of its token."""
        return self.user or f"token:{self.token}"


def credential_of(kind: TokenKind, text: str) -> PresentedCredential:
    """The credential with this text. Raises `AccessError` if the text does not have the form of this kind."""
    match = _CREDENTIAL_PATTERN.fullmatch(text)
    if match is None or match[1] != _PREFIXES[kind]:
        raise unauthorized_error(f"there is no valid {kind}")
    return PresentedCredential(kind, match[2], hashlib.sha256(text.encode()).hexdigest())


def new_credential_text(kind: TokenKind, project: str) -> str:
    """The text of a new token, session or code, with 256 random bits."""
    return f"{_PREFIXES[kind]}_{project}_{secrets.token_urlsafe(32)}"


def caller_of(record: SharedAccessToken | None, credential: PresentedCredential, now: datetime) -> Caller:
    """The caller with this credential. Raises `AccessError` if the credential is unknown or not valid now."""
    kind = credential.kind
    if record is None or record.project != credential.project or record.kind != kind:
        raise unauthorized_error(
            f"the {kind} is unknown, {'was used' if kind == 'code' else 'has ended'}, or was revoked"
        )
    if record.expires_at <= now:
        raise unauthorized_error(f"the {kind} has expired")
    return Caller(
        record.project, record.token, record.role, credential.digest, record.expires_at, kind=kind, user=record.user
    )


def check_role(caller: Caller, needed_role: AccessRole) -> None:
    """Raise `AccessError` unless the caller has the needed role or a higher one."""
    if ROLE_RANKS[caller.role] < ROLE_RANKS[needed_role]:
        text = f"this needs a token with the role {needed_role}; {caller.token} has {caller.role}"
        remedy = f"create one with `sandherd tokens create NAME --role {needed_role}`"
        raise AccessError(problem_of(Code.REFUSED, text, remedy=remedy), 403)


def unauthorized_error(message: str) -> AccessError:
    """The refusal of a request without a valid token."""
    remedy = (
        "create a token with `sandherd tokens create`, and send it as `Authorization: Bearer shd_…`; "
        "in a browser sign in, or use `sandherd open`"
    )
    return AccessError(problem_of(Code.REFUSED, message, remedy=remedy), 401)


class TokenReader:
    """Reads access tokens. No token is cached, so that every replica refuses a revoked token immediately."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus

    async def authenticate(self, credential: PresentedCredential) -> Caller:
        """The caller with this credential. Raises `AccessError`."""
        return caller_of(await self._read_record(credential), credential, datetime.now(UTC))

    async def check(self, caller: Caller) -> None:
        """Raise `AccessError` if the caller's token was revoked or has expired.

        If the token can't be read at present, it counts as not revoked.
        """
        credential = PresentedCredential(caller.kind, caller.project, caller.digest)
        try:
            record = await self._read_record(credential)
        except AccessError:
            record = SharedAccessToken(
                project=caller.project,
                token=caller.token,
                role=caller.role,
                expires_at=caller.expires_at,
                kind=caller.kind,
            )
        caller_of(record, credential, datetime.now(UTC))

    async def _read_record(self, credential: PresentedCredential) -> SharedAccessToken | None:
        try:
            return await read_record(self._bus, SharedAccessToken, credential.project, credential.digest)
        except (*BROKER_ERRORS, ValueError) as error:
            text = f"access tokens can't be read now: {type(error).__name__}"
            raise AccessError(problem_of(Code.UNAVAILABLE, text, remedy="retry in a moment"), 503) from error
