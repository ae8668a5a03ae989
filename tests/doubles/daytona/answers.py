"""What the double says: every answer is looked at by the SDK's own models, every refusal has Daytona's own form."""

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
"""What a list does not show of a sandbox."""


def checked(model: str, fields: dict[str, Any]) -> dict[str, Any]:
    """The same, if the SDK's model has all of it. A field that it does not know is a mistake of the double's."""
    read = MODELS[model].from_dict(fields)
    assert read is not None
    assert not read.additional_properties, (model, read.additional_properties)
    return fields


def answer(model: str, fields: dict[str, Any]) -> web.Response:
    """An answer of the API."""
    return web.json_response(checked(model, fields))


class ApiError(Exception):
    """A refusal of the API, raised wherever it turns out."""

    def __init__(self, status: int, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.headers = status, message, dict(headers or {})

    def response(self, path: str) -> web.Response:
        """As the API's filter of errors writes it; its throttler has another form."""
        body: dict[str, Any] = {"statusCode": self.status, "message": self.message, "error": NAMES[self.status]}
        if self.status != 429:
            body |= {"path": path, "timestamp": now()}
        return web.json_response(body, status=self.status, headers=self.headers)


def daemon_error(status: int, code: str, message: str, request: web.Request) -> web.Response:
    """A refusal of the daemon inside."""
    body = {"statusCode": status, "code": code, "source": "DAYTONA_DAEMON", "message": message}
    return web.json_response(
        {**body, "timestamp": now(), "path": request.path, "method": request.method}, status=status
    )


def now() -> str:
    """As the API writes a time."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def snapshot(name: str, state: str) -> dict[str, Any]:
    """A snapshot."""
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
