"""Parts that routes share: names in paths, the reply to a command, and descriptions of responses."""

import hashlib
from typing import Annotated, Any, Final

from fastapi import Header, Path, Request
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel

from gateway.access_tokens import AccessError
from gateway.problems import MEDIA_TYPE, ProblemDetails, problem_of
from sandherd.contracts.errors import Code
from sandherd.contracts.model import Model
from sandherd.contracts.names import SafeName

PREFIX: Final = "/api/v1"
Name = Annotated[SafeName, Path()]
"""The name of a task or sandbox in a path."""
AfterHeader = Annotated[str | None, Header(alias="Last-Event-ID", max_length=80)]
"""The position of the last event that a client has received."""
# Descriptions of responses in the OpenAPI document: PROBLEMS of every route, the others of routes without JSON.
PROBLEMS: Final[dict[int | str, dict[str, Any]]] = {
    "4XX": {"description": "The request is refused.", "content": {MEDIA_TYPE: {}}, "model": ProblemDetails},
    "5XX": {
        "description": "The request could not be handled now.",
        "content": {MEDIA_TYPE: {}},
        "model": ProblemDetails,
    },
}
FILE_RESPONSE: Final[dict[int | str, dict[str, Any]]] = {
    200: {
        "description": "The bytes of the file.",
        "content": {"application/octet-stream": {"schema": {"type": "string"}}},
    }
}
MatchHeader = Annotated[str | None, Header(alias="If-Match", max_length=1000)]
"""The entity tags of the states for which a command is meant."""
STREAM_RESPONSE: Final[dict[int | str, dict[str, Any]]] = {
    200: {
        "description": "Server-Sent Events: each has the type of an event, its position as `id`, and its document.",
        "content": {"text/event-stream": {"schema": {"type": "string"}}},
    }
}


class Accepted(Model):
    """A command is stored. Its outcome is shown by events, and by the state of the object that it is about."""

    name: SafeName
    """The object that the command is about or creates: a task, a sandbox or a message."""


def tag_of(view: BaseModel) -> str:
    """The entity tag of a view, which changes whenever a value in the view changes."""
    return f'"{hashlib.sha256(view.model_dump_json().encode()).hexdigest()[:32]}"'


def response_with_tag(request: Request, view: BaseModel) -> Response:
    """The view with its tag; without the view if the client already has it (`If-None-Match`)."""
    tag = tag_of(view)
    if _has_tag(request.headers.get("if-none-match", ""), tag):
        return Response(status_code=304, headers={"ETag": tag})
    return Response(view.model_dump_json(), headers={"ETag": tag}, media_type="application/json")


def check_match(if_match: str | None, view: BaseModel) -> None:
    """Raise `AccessError` if a command is meant for another state than the present one (`If-Match`)."""
    if if_match is not None and not _has_tag(if_match, tag_of(view)):
        text = "it has changed since the client read it"
        raise AccessError(
            problem_of(Code.CONFLICT, text, field="If-Match", remedy="read it again before you retry"), 412
        )


def _has_tag(header: str, tag: str) -> bool:
    tags = [part.strip().removeprefix("W/") for part in header.split(",")]
    return tag in tags or "*" in tags


def accepted_response(name: str, location: str) -> JSONResponse:
    """The response to a stored command, with the location that shows its outcome."""
    return JSONResponse({"name": name}, 202, {"Location": f"{PREFIX}{location}"})
