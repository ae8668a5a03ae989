"""The responses of the Daytona double: each is checked by the SDK's own models, and each error has Daytona's form."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from aiohttp import web
from daytona_api_client_async import (
    ListSandboxesResponse,
    PortPreviewUrl,
    Sandbox,
    SandboxLabels,
    SandboxListItem,
    SnapshotDto,
)
from daytona_toolbox_api_client_async import Command, ExecuteResponse, Session, SessionExecuteResponse

NAMES = {400: "Bad Request", 401: "Unauthorized", 403: "Forbidden", 404: "Not Found", 409: "Conflict"}
NAMES |= {429: "Too Many Requests", 500: "Internal Server Error", 502: "Bad Gateway", 503: "Service Unavailable"}
MODELS = {
    model.__name__: model
    for model in (
        *(ListSandboxesResponse, PortPreviewUrl, Sandbox, SandboxLabels, SandboxListItem, SnapshotDto),
        *(Command, ExecuteResponse, Session, SessionExecuteResponse),
    )
}
NOT_LISTED = ("env", "volumes", "buildInfo", "kvm")
"""The fields of a sandbox that a list omits."""


def checked(model: str, fields: dict[str, Any]) -> dict[str, Any]:
    """Return `fields` if the SDK's model knows all of them. An unknown field is a mistake of the double."""
    read = MODELS[model].from_dict(fields)
    assert read is not None
    assert not read.additional_properties, (model, read.additional_properties)
    return fields


def answer(model: str, fields: dict[str, Any]) -> web.Response:
    """An answer of the API."""
    return web.json_response(checked(model, fields))


class ApiError(Exception):
    """A response of the API that is an error; code of the double raises it anywhere."""

    def __init__(self, status: int, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.headers = status, message, dict(headers or {})

    def response(self, path: str) -> web.Response:
        """The response as the API's error filter writes it; the form of its throttler (429) differs."""
        body: dict[str, Any] = {"statusCode": self.status, "message": self.message, "error": NAMES[self.status]}
        if self.status != 429:
            body |= {"path": path, "timestamp": now()}
        return web.json_response(body, status=self.status, headers=self.headers)


def daemon_error(status: int, code: str, message: str, request: web.Request) -> web.Response:
    """An error response of the daemon in a sandbox."""
    body = {"statusCode": status, "code": code, "source": "DAYTONA_DAEMON", "message": message}
    return web.json_response(
        {**body, "timestamp": now(), "path": request.path, "method": request.method}, status=status
    )


def now() -> str:
    """The time in the API's format."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def snapshot(name: str, state: str) -> dict[str, Any]:
    """The document of a snapshot."""
    why = {"error": "the image could not be pulled", "build_failed": "a step of the build failed"}.get(state)
    times = {"createdAt": now(), "updatedAt": now(), "lastUsedAt": None}
    return {
        "id": f"snap-{name}",
        "general": False,
        "name": name,
        "state": state,
        "size": 1.5,
        "entrypoint": None,
        "cpu": 1,
        "gpu": 0,
        "mem": 1,
        "disk": 3,
        "errorReason": why,
        "sourceSandboxId": None,
        **times,
    }
