"""The API as a FastAPI application, and its OpenAPI document. Models of bodies and responses are the contracts."""

from collections.abc import Callable
from http import HTTPStatus
from typing import Any, Final

from fastapi import Depends, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.responses import Response

from gateway.access_tokens import AccessError
from gateway.browser_security import COOKIE
from gateway.problems import problem_of, problem_response
from gateway.route_table import allowed_methods, check_query
from gateway.routes import (
    branches,
    files,
    herd,
    history,
    operations,
    outgoing_webhooks,
    project,
    sandbox_work,
    sandboxes,
    session,
    sign_in,
    sockets,
    tasks,
    webhooks,
)
from gateway.routes.route_replies import PREFIX, PROBLEMS
from gateway.sessions import Backend
from sandherd.client.errors import HerdError
from sandherd.contracts.errors import Code
from sandherd.contracts.validation_texts import validation_text
from sandherd.telemetry import logs

VERSION: Final = "1"
_DESCRIPTION: Final = (
    "Tasks, sandboxes and events of one project, which is that of the access token. "
    "docs/gateway.md describes access, errors, idempotency and the live stream."
)
_CODES: Final = {400: Code.INVALID_JSON, 404: Code.NOT_FOUND}
"""The codes of FastAPI's own errors, by status. Others, such as a wrong method, have the code `refused`."""
_MODULES: Final = (
    *(herd, operations, tasks, sandboxes, sandbox_work, files, project),
    *(branches, session, sign_in, history, outgoing_webhooks),
)
ROUTERS: Final = tuple(module.router for module in _MODULES)
_log: Final = logs.get("application")


def application(backend: Callable[[], Backend]) -> FastAPI:
    """The application. Routes call `backend`, which returns the parts that they use once the service is connected."""
    app = FastAPI(
        title="Sandherd",
        version=VERSION,
        description=_DESCRIPTION,
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        generate_unique_id_function=_operation_id,
        separate_input_output_schemas=False,
    )
    app.state.backend = backend
    for router in ROUTERS:
        app.include_router(router, prefix=PREFIX, responses=PROBLEMS, dependencies=[Depends(check_query)])
    app.include_router(sockets.router, prefix=PREFIX, responses=PROBLEMS)
    app.include_router(webhooks.router)
    _handle_errors(app)
    return app


def document() -> dict[str, Any]:
    """The OpenAPI document."""
    openapi: dict[str, Any] = application(_no_backend).openapi()
    openapi["components"]["securitySchemes"] = {
        "token": {"type": "http", "scheme": "bearer"},
        "session": {"type": "apiKey", "in": "cookie", "name": COOKIE},
    }
    openapi["security"] = [{"token": []}, {"session": []}]
    return openapi


def _no_backend() -> Backend:
    raise RuntimeError("only the document of this application is used")


def _operation_id(route: APIRoute) -> str:
    return route.name


def _handle_errors(app: FastAPI) -> None:
    app.add_exception_handler(HerdError, _handle_herd_error)
    app.add_exception_handler(AccessError, _handle_access_error)
    app.add_exception_handler(RequestValidationError, _handle_validation_error)
    app.add_exception_handler(HTTPException, _handle_http_error)
    app.add_exception_handler(Exception, _handle_bug)


async def _handle_herd_error(_request: Request, error: Exception) -> Response:
    assert isinstance(error, HerdError)
    return problem_response(error.problem)


async def _handle_access_error(_request: Request, error: Exception) -> Response:
    assert isinstance(error, AccessError)
    return problem_response(error.problem, error.status)


async def _handle_validation_error(_request: Request, error: Exception) -> Response:
    """The response for the first error. It does not contain the invalid value, which may be a secret."""
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    field = ".".join(str(part)[:64] for part in first["loc"][1:])[:200]
    field_name = "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in field) or None
    code = Code.INVALID_JSON if first["type"] == "json_invalid" else Code.INVALID_FIELD
    reason = validation_text(first["type"], str(first["msg"]), first.get("ctx", {}))
    text = f"{field_name}: {reason}" if field_name else reason
    return problem_response(problem_of(code, text, field=field_name, remedy="see docs/openapi.json"))


async def _handle_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    code = _CODES.get(error.status_code, Code.REFUSED)
    headers = dict(error.headers or {})
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        headers["Allow"] = allowed_methods(ROUTERS, request.scope["path"])
    problem = problem_of(code, str(error.detail), remedy="see docs/openapi.json")
    return problem_response(problem, error.status_code, headers)


async def _handle_bug(_request: Request, error: Exception) -> Response:
    _log.error("request to the API failed", exc_info=error)
    return problem_response(problem_of(Code.INTERNAL, "the gateway has failed", remedy="see its log"))
