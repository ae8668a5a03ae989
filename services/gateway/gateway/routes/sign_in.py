"""Sign-in by an OpenID provider: the browser is sent to it, and returns with a code. A page shows refusals."""

import hashlib
from typing import Annotated, Any, Final
from urllib.parse import urlencode

from fastapi import APIRouter, Query, Request
from fastapi.responses import RedirectResponse, Response

from gateway.access_tokens import AccessError, new_credential_text
from gateway.browser_security import cookie_in, session_cookie
from gateway.oidc.flow import COOKIE, SECONDS, SignInError, SignInFlow
from gateway.problems import problem_of, problem_response
from gateway.routes.session import cookie_of, end_earlier_session, gateway_connection
from gateway.sessions import Backend
from sandherd.client.errors import HerdError
from sandherd.contracts.errors import Code
from sandherd.contracts.model import Model
from sandherd.contracts.names import SafeName
from sandherd.contracts.records import AccessRole
from sandherd.contracts.requests import SignIn
from sandherd.telemetry import logs

router: Final = APIRouter(tags=["session"])
_PUBLIC: Final[dict[str, Any]] = {"security": []}
_log: Final = logs.get("sign_in")
Text = Annotated[str | None, Query(max_length=4096)]


class SignInMethods(Model):
    """How a browser can sign in, besides by a token and by `sandherd open`."""

    oidc: bool
    """Whether there is an OpenID provider. Its sign-in begins at `/api/v1/sign-in/oidc`."""


@router.get("/sign-in", openapi_extra=_PUBLIC)
async def sign_in_methods(request: Request) -> SignInMethods:
    """How a browser can sign in. Needs no credential."""
    backend: Backend = request.app.state.backend()
    return SignInMethods(oidc=backend.oidc is not None)


@router.get("/sign-in/oidc", status_code=303, response_class=Response, openapi_extra=_PUBLIC)
async def begin_oidc(
    request: Request, project: SafeName | None = None, page: Annotated[str | None, Query(alias="next")] = None
) -> Response:
    """Send the browser to the OpenID provider. `next` is the page that it returns to."""
    backend: Backend = request.app.state.backend()
    if backend.oidc is None:
        return problem_response(problem_of(Code.NOT_FOUND, "there is no OpenID provider", remedy="sign in by a token"))
    flow = SignInFlow.begin(project, page)
    try:
        url = await backend.oidc.authorization_url(flow, request.headers.get("host", ""))
    except SignInError as error:
        return _refusal(error, flow.page)
    return _redirect(url, session_cookie(flow.cookie(), SECONDS, COOKIE))


@router.get("/sign-in/oidc/callback", status_code=303, response_class=Response, openapi_extra=_PUBLIC)
async def end_oidc(
    request: Request, state: Text = None, code: Text = None, iss: Text = None, error: Text = None
) -> Response:
    """End a sign-in: the provider sends the browser here. It gets a session, and is sent to the page where it began."""
    backend: Backend = request.app.state.backend()
    page = "/"
    try:
        flow = _sign_in_of_browser(request, state)
        page = flow.page
        return await _finish_sign_in(backend, request, flow, code if error is None else None, iss)
    except SignInError as refusal:
        return _refusal(refusal, page)


async def _finish_sign_in(
    backend: Backend, request: Request, flow: SignInFlow, code: str | None, iss: str | None
) -> Response:
    if backend.oidc is None:
        raise SignInError("there is no OpenID provider")
    identity = await backend.oidc.identity(flow, request.headers.get("host", ""), code=code, issuer=iss)
    roles = backend.oidc.roles(identity)
    project = flow.project or (next(iter(roles)) if len(roles) == 1 else "")
    if project not in roles:
        return _redirect(_sign_in_page(flow.page, projects=",".join(sorted(roles))), _deleted_flow_cookie())
    session_text = new_credential_text("session", project)
    await end_earlier_session(backend, request)
    return _redirect(
        flow.page,
        await _create_session(backend, project, roles[project], identity.user, session_text),
        _deleted_flow_cookie(),
    )


async def _create_session(backend: Backend, project: str, role: AccessRole, user: str, session_text: str) -> str:
    """Create a session. Returns the value of the header `Set-Cookie` for it."""
    digest = hashlib.sha256(session_text.encode()).hexdigest()
    try:
        created = await gateway_connection(backend, project).request(SignIn(sha256=digest, role=role, user=user))
    except HerdError as error:
        raise SignInError(error.problem.message) from error
    return cookie_of(created, session_text)


def _sign_in_of_browser(request: Request, state: str | None) -> SignInFlow:
    """The sign-in that this browser has begun. Raises `SignInError` if the response does not belong to it."""
    try:
        cookie = cookie_in(request.headers, COOKIE)
    except AccessError as error:
        raise SignInError(error.problem.message) from error
    flow = None if cookie is None else SignInFlow.of_cookie(cookie)
    if flow is None or state is None or not flow.matches(state):
        raise SignInError("this browser has begun no such sign-in")
    return flow


def _refusal(error: SignInError, page: str) -> Response:
    _log.warning("sign-in refused", reason=error.reason, error=str(error))
    return _redirect(_sign_in_page(page, error=error.reason), _deleted_flow_cookie())


def _sign_in_page(page: str, **parameters: str) -> str:
    """The URL of the sign-in page. The page reads these parameters from the fragment."""
    return f"/sign-in#{urlencode({'next': page, **parameters})}"


def _redirect(url: str, *cookies: str) -> Response:
    response = RedirectResponse(url, 303)
    for cookie in cookies:
        response.headers.append("Set-Cookie", cookie)
    return response


def _deleted_flow_cookie() -> str:
    return session_cookie("", 0, COOKIE)
