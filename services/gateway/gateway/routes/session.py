"""A browser's session: created for a token or a one-time code, shown, and ended. Its text is in a cookie only."""

import hashlib
import math
import time
from contextlib import suppress
from datetime import UTC, datetime
from typing import Annotated, Final, Self

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from pydantic import ConfigDict, Field, StringConstraints, model_validator

from gateway.access_tokens import AccessError, PresentedCredential, credential_of, new_credential_text
from gateway.browser_security import cookie_in, deleting_cookie, session_cookie
from gateway.request_guard import rate_refusal
from gateway.sessions import Backend, ReadSession
from sandherd.client.connection import Connection
from sandherd.client.errors import HerdError
from sandherd.contracts.errors import Code
from sandherd.contracts.model import Model, Moment
from sandherd.contracts.names import SafeName, new_name
from sandherd.contracts.records import AccessRole
from sandherd.contracts.requests import CreateSession, EndSession, TokenView

router: Final = APIRouter(tags=["session"])
Secret = Annotated[str, StringConstraints(min_length=1, max_length=256)]


class SignInBody(Model):
    """The credential for a session: an access token, or the one-time code of `sandherd open`."""

    model_config = ConfigDict(extra="forbid", defer_build=False)

    token: Secret | None = Field(default=None, repr=False)
    code: Secret | None = Field(default=None, repr=False)

    @model_validator(mode="after")
    def _check_token_or_code(self) -> Self:
        if (self.token is None) == (self.code is None):
            raise ValueError("there has to be either a token or a code")
        return self


class SessionView(Model):
    """The caller, and what it may do."""

    project: SafeName
    name: str
    """The caller's name in commands."""
    role: AccessRole
    expires_at: Moment


@router.post("/session", response_model=SessionView, openapi_extra={"security": []})
async def sign_in(request: Request, body: SignInBody) -> JSONResponse:
    """Create a session for a browser, and set its cookie. An earlier session of the browser ends."""
    backend: Backend = request.app.state.backend()
    proof = body.token or body.code or ""
    credential = credential_of("token" if body.token else "code", proof)
    await backend.streams.tokens.authenticate(credential)  # so that invalid ones never reach the spawner
    excess = backend.sign_ins.excess(credential.digest, time.monotonic())
    if excess:
        raise HerdError(rate_refusal(excess))
    text = new_credential_text("session", credential.project)
    created = await gateway_connection(backend, credential.project).request(
        CreateSession(sha256=hashlib.sha256(text.encode()).hexdigest(), proof=proof)
    )
    await end_earlier_session(backend, request)
    return JSONResponse(_view(created).model_dump(mode="json"), headers={"Set-Cookie": cookie_of(created, text)})


@router.get("/session")
async def get_session(session: ReadSession) -> SessionView:
    """The caller: its project, name and role, and when its token or session expires."""
    caller = session.caller
    return SessionView(project=caller.project, name=caller.name, role=caller.role, expires_at=caller.expires_at)


@router.delete("/session", status_code=204, response_class=Response)
async def sign_out(session: ReadSession) -> Response:
    """End the session. Open streams of the browser end within 15 s."""
    caller = session.caller
    if caller.kind != "session":
        text = "the request has an access token, which is not a session"
        raise HerdError.of(Code.CONFLICT, text, remedy="revoke it with `sandherd tokens revoke`")
    await session.herd.connection.request(EndSession(sha256=caller.digest))
    return Response(status_code=204, headers={"Set-Cookie": deleting_cookie()})


def cookie_of(created: TokenView, text: str) -> str:
    """The value of the header `Set-Cookie` with a new session."""
    remaining_seconds = math.floor((created.expires_at - datetime.now(UTC)).total_seconds())
    return session_cookie(text, max(0, remaining_seconds))


def _view(created: TokenView) -> SessionView:
    name = created.user or created.name
    return SessionView(project=created.project, name=name, role=created.role, expires_at=created.expires_at)


async def end_earlier_session(backend: Backend, request: Request) -> None:
    """End the session that the browser had. If this fails, the new session is valid nevertheless."""
    credential = _presented_session(request)
    if credential is not None:
        with suppress(HerdError):
            await gateway_connection(backend, credential.project).request(EndSession(sha256=credential.digest))


def _presented_session(request: Request) -> PresentedCredential | None:
    with suppress(AccessError):
        text = cookie_in(request.headers)
        return None if text is None else credential_of("session", text)
    return None


def gateway_connection(backend: Backend, project: str) -> Connection:
    """A connection for the gateway's own requests about a project."""
    return Connection.over(backend.bus, project, issuer=f"/sandherd/gateway/{new_name('req')}")
