"""The session of a request: its caller, and operations on the herd in the project of the caller's credential."""

import hashlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final
from uuid import UUID

from fastapi import Depends, Header, Request
from pydantic import StringConstraints

from gateway.access_tokens import Caller, check_role
from gateway.downloads import DownloadSpace
from gateway.event_stream import EventStreams
from gateway.request_guard import CONTENT, REQUEST, caller_in
from gateway.sockets import SocketTable
from gateway.webhooks import RecentDeliveries
from sandherd.bus.connection import Bus
from sandherd.bus.rate_limit import RateLimiter, rate_of
from sandherd.client.connection import Connection
from sandherd.client.herd import Herd
from sandherd.contracts.names import new_name
from sandherd.contracts.records import AccessRole
from sandherd.contracts.requests.diagnostics import Examination

if TYPE_CHECKING:
    from gateway.oidc.sign_in import OidcSignIn

IDEMPOTENCY: Final = "Idempotency-Key"
IdempotencyKey = Annotated[str, StringConstraints(pattern=r"^[\x21-\x7e]{1,255}$")]
_BASE32_ALPHABET: Final = "0123456789abcdefghjkmnpqrstvwxyz"


@dataclass(frozen=True)
class Backend:
    """The parts of a running gateway that its routes use."""

    bus: Bus
    streams: EventStreams
    downloads: DownloadSpace
    sockets: SocketTable
    deliveries: RecentDeliveries
    webhook_secrets: Path | None
    examine: Callable[[], Awaitable[Examination]]
    """Returns the health of this gateway. It is a function, because a service can't send itself a request."""
    sign_ins: RateLimiter = field(default_factory=lambda: RateLimiter(rate_of(1, 10)))
    """Limits the rate of sign-ins with the same token or code."""
    oidc: "OidcSignIn | None" = None
    """Sign-in by an OpenID provider; None if the settings name none."""


@dataclass(frozen=True)
class Session:
    """One request: its caller, and the herd in the caller's project.

    `key` identifies a request with an idempotency key: project, token, method, path with query, and idempotency key.
    A repetition of the request has the same `key`. It is None without an idempotency key.
    """

    backend: Backend
    caller: Caller
    herd: Herd
    key: tuple[str, ...] | None

    def check(self, needed_role: AccessRole) -> None:
        """Raise `AccessError` unless the caller has at least this role."""
        check_role(self.caller, needed_role)

    def name(self, prefix: str) -> str:
        """A name for the object that the request creates, the same for repeated requests with an idempotency key."""
        if self.key is None:
            return new_name(prefix)
        return f"{prefix}-{derived_name(*self.key)}"


def derived_name(*parts: str) -> str:
    """26 characters, permitted in a safe name, that are derived from `parts` by a hash."""
    number = int.from_bytes(_digest(*parts)[:17], "big")
    return "".join(_BASE32_ALPHABET[number >> shift & 31] for shift in range(0, 130, 5))


def command_id(*parts: str) -> UUID:
    """The id of a command, derived from `parts` by a hash: a UUID of version 8 (RFC 9562)."""
    number = int.from_bytes(_digest(*parts)[:16], "big")
    number = number & ~(0xF << 76) | 8 << 76
    return UUID(int=number & ~(0x3 << 62) | 2 << 62)


def _digest(*parts: str) -> bytes:
    return hashlib.sha256("\0".join(parts).encode()).digest()


def herd_of(backend: Backend, caller: Caller, request: str, first_command_id: UUID | None = None) -> Herd:
    """The herd in the caller's project. `request` is the id of the HTTP request, as in the header `X-Request-Id`.

    The first command has the id `first_command_id`, so that a repeated request sends the same command.
    """
    issuer = f"/sandherd/gateway/{caller.token}/{request}"
    return Herd(Connection.over(backend.bus, caller.project, issuer=issuer, first=first_command_id))


def _session(needed_role: AccessRole) -> Callable[..., Session]:
    """A dependency that returns the session of a request. It raises `AccessError` if the caller lacks this role."""

    def session(request: Request, key: Annotated[IdempotencyKey | None, Header(alias=IDEMPOTENCY)] = None) -> Session:
        backend: Backend = request.app.state.backend()
        caller = caller_in(request.scope)
        check_role(caller, needed_role)
        path = f"{request.scope['path']}?{request.scope['query_string'].decode('latin-1')}"
        key_parts = None if key is None else (caller.project, caller.token, request.method, path, key)
        # The id also depends on the content: the broker drops a command whose id it already has. A request with the
        # same key and another content must reach the service, which refuses it.
        first_command_id = None if key_parts is None else command_id(*key_parts, request.scope[CONTENT])
        return Session(backend, caller, herd_of(backend, caller, request.scope[REQUEST], first_command_id), key_parts)

    return session


def _read_session(request: Request) -> Session:
    """The session of a request that needs the role `read` and accepts no idempotency key."""
    return _session("read")(request)


def _operate_session(request: Request) -> Session:
    """The session of a request that needs the role `operate` and accepts no idempotency key."""
    return _session("operate")(request)


ReadSession = Annotated[Session, Depends(_read_session)]
"""A session whose caller has at least the role `read`."""
WorkSession = Annotated[Session, Depends(_session("work"))]
"""A session whose caller has at least the role `work`. The request accepts an idempotency key."""
ApproveSession = Annotated[Session, Depends(_session("approve"))]
"""A session whose caller has at least the role `approve`. The request accepts an idempotency key."""
OperateSession = Annotated[Session, Depends(_operate_session)]
"""A session whose caller has the role `operate`."""
