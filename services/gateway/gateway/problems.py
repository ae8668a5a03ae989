"""Errors as `application/problem+json` (RFC 9457), with the code, field and remedy of the herd's typed errors."""

import json
import math
from collections.abc import Mapping
from http import HTTPStatus
from typing import Final

from pydantic import Field
from starlette.responses import Response

from sandherd.contracts.errors import Code, Problem
from sandherd.contracts.model import Model

MEDIA_TYPE: Final = "application/problem+json"
STATUS: Final[Mapping[Code, int]] = {
    Code.INVALID_JSON: 400,
    Code.INVALID_FIELD: 422,
    Code.UNKNOWN_TYPE: 422,
    Code.UNKNOWN_VERSION: 422,
    Code.WRONG_SUBJECT: 422,
    Code.TOO_LARGE: 413,
    Code.UNSAFE_NAME: 422,
    Code.NOT_FOUND: 404,
    Code.CONFLICT: 409,
    Code.REFUSED: 403,
    Code.BUSY: 503,
    Code.UNAVAILABLE: 503,
    Code.INTERNAL: 500,
}
"""The status of each code of the herd's own errors."""


class ProblemDetails(Model):
    """An error of the HTTP API (RFC 9457)."""

    type: str = "about:blank"
    title: str
    """The phrase of the status."""
    status: int = Field(ge=400, le=599)
    detail: str
    code: Code
    field: str | None = None
    remedy: str | None = None


def problem_response(problem: Problem, status: int | None = None, headers: Mapping[str, str] | None = None) -> Response:
    """The response for an error. Without `status`, it has the status of the error's code."""
    status_code = status or STATUS[problem.code]
    details = ProblemDetails(
        title=HTTPStatus(status_code).phrase,
        status=status_code,
        detail=problem.message,
        code=problem.code,
        field=problem.field,
        remedy=problem.remedy,
    )
    all_headers = dict(headers or {})
    if problem.retry_after_seconds is not None or status_code == HTTPStatus.SERVICE_UNAVAILABLE:
        all_headers["Retry-After"] = str(max(1, math.ceil(problem.retry_after_seconds or 0)))
    body = json.dumps(details.model_dump(mode="json", exclude_none=True), ensure_ascii=False)
    return Response(body, status_code, all_headers, media_type=MEDIA_TYPE)


def problem_of(code: Code, message: str, *, field: str | None = None, remedy: str | None = None) -> Problem:
    """An error of the gateway itself."""
    return Problem(code=code, message=message, field=field, remedy=remedy)
