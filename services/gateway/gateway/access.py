"""Who may use the API: access tokens, read from the spawner's bucket at each use, and what their roles permit."""

import hashlib
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, get_args

import nats.errors
import nats.js.errors

from gateway.problems import problem_of
from sandherd.bus.connection import Bus
from sandherd.bus.kv import read_record
from sandherd.contracts.errors import Code, Problem
from sandherd.contracts.records import AccessRole, SharedAccessToken

_TOKEN: Final = re.compile(r"^shd_([a-z0-9][a-z0-9-]{0,62})_[A-Za-z0-9_-]{43}$")
_RANK: Final = {role: rank for rank, role in enumerate(get_args(AccessRole))}
_SCHEME: Final = "bearer "


class AccessError(Exception):
    """A request is refused: with a problem, and the status of its response."""

    def __init__(self, problem: Problem, status: int) -> None:
        super().__init__(problem.message)
        self.problem = problem
        self.status = status


@dataclass(frozen=True)
class Caller:
    """The holder of an access token."""

    project: str
    token: str
    role: AccessRole
    digest: str
    expires_at: datetime

    @property
    def name(self) -> str:
        """How commands and events name it."""
        return f"token:{self.token}"


def digest_of(authorization: str) -> tuple[str, str]:
    """The project and the hash of the token in a header `Authorization`. Raises `AccessError`."""
    text = authorization[len(_SCHEME) :].strip() if authorization.lower().startswith(_SCHEME) else ""
    form = _TOKEN.match(text)
    if form is None:
        raise unauthorized("there is no access token in the header Authorization")
    return form[1], hashlib.sha256(text.encode()).hexdigest()


def caller_of(record: SharedAccessToken | None, project: str, digest: str, now: datetime) -> Caller:
    """The holder of a stored token that is valid now. Raises `AccessError`."""
    if record is None or record.project != project:
        raise unauthorized("the access token is unknown, or was revoked")
    if record.expires_at <= now:
        raise unauthorized("the access token has expired")
    return Caller(record.project, record.token, record.role, digest, record.expires_at)


def check_role(caller: Caller, needed: AccessRole) -> None:
    """Raise `AccessError` unless the caller's role is the needed one or a higher one."""
    if _RANK[caller.role] < _RANK[needed]:
        text = f"this needs a token with the role {needed}; {caller.token} has {caller.role}"
        remedy = f"create one with `sandherd tokens create NAME --role {needed}`"
        raise AccessError(problem_of(Code.REFUSED, text, remedy=remedy), 403)


def unauthorized(message: str) -> AccessError:
    """The refusal of a request without a valid token."""
    remedy = "create one with `sandherd tokens create`, and send it as `Authorization: Bearer shd_…`"
    return AccessError(problem_of(Code.REFUSED, message, remedy=remedy), 401)


class TokenReader:
    """Reads access tokens. None is cached, so that a revoked one is refused at once, by every replica."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus

    async def authenticate(self, authorization: str) -> Caller:
        """The caller with this header. Raises `AccessError`."""
        project, digest = digest_of(authorization)
        return caller_of(await self._record(project, digest), project, digest, datetime.now(UTC))

    async def check(self, caller: Caller) -> None:
        """Raise `AccessError` if the caller's token was revoked or has expired since; not if it can't be read now."""
        try:
            record = await self._record(caller.project, caller.digest)
        except AccessError:
            record = SharedAccessToken(
                project=caller.project, token=caller.token, role=caller.role, expires_at=caller.expires_at
            )
        caller_of(record, caller.project, caller.digest, datetime.now(UTC))

    async def _record(self, project: str, digest: str) -> SharedAccessToken | None:
        try:
            return await read_record(self._bus, SharedAccessToken, project, digest)
        except (nats.errors.Error, nats.js.errors.Error, TimeoutError, OSError, ValueError) as error:
            text = f"access tokens can't be read now: {type(error).__name__}"
            raise AccessError(problem_of(Code.UNAVAILABLE, text, remedy="retry in a moment"), 503) from error
