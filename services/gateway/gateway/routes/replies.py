"""What routes have in common: names in paths, the reply to a command, and how responses are described."""

from typing import Annotated, Any, Final

from fastapi import Header, Path
from fastapi.responses import JSONResponse

from gateway.problems import MEDIA_TYPE, ProblemDetails
from sandherd.contracts.model import Model
from sandherd.contracts.names import SafeName

PREFIX: Final = "/api/v1"
Name = Annotated[SafeName, Path()]
"""The name of a task or sandbox in a path."""
AfterHeader = Annotated[str | None, Header(alias="Last-Event-ID", max_length=80)]
"""The position of the last event that a client has received."""
PROBLEMS: Final[dict[int | str, dict[str, Any]]] = {
    "4XX": {"description": "The request is refused.", "content": {MEDIA_TYPE: {}}, "model": ProblemDetails},
    "5XX": {"description": "It could not be handled now.", "content": {MEDIA_TYPE: {}}, "model": ProblemDetails},
}
FILE: Final[dict[int | str, dict[str, Any]]] = {
    200: {"description": "Its bytes.", "content": {"application/octet-stream": {"schema": {"type": "string"}}}}
}
STREAM: Final[dict[int | str, dict[str, Any]]] = {
    200: {
        "description": "Server-Sent Events: each with the type of an event, its position as `id` and its document.",
        "content": {"text/event-stream": {"schema": {"type": "string"}}},
    }
}


class Accepted(Model):
    """A command is stored. Its outcome is an event, and the state of what it is about."""

    name: SafeName
    """What it is about or creates: a task, a sandbox or a message."""


def accepted(name: str, location: str) -> JSONResponse:
    """The response to a stored command: where to see its outcome."""
    return JSONResponse({"name": name}, 202, {"Location": f"{PREFIX}{location}"})
