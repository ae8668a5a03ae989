"""The requests that the proxy serves: the four of git's HTTP protocol, at the path of one sandbox. Pure."""

import base64
import binascii
import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from sandherd.contracts.names import SAFE_NAME_PATTERN

_NAME: Final = SAFE_NAME_PATTERN.removeprefix("^").removesuffix("$")
_PATH: Final = re.compile(
    rf"/(?P<project>{_NAME})/(?P<sandbox>{_NAME})(\.git)?/(?P<end>info/refs|git-upload-pack|git-receive-pack)"
)
_MAX_AUTHORIZATION_BYTES: Final = 1024


class Service(StrEnum):
    """The program of git that serves a request."""

    FETCH = "git-upload-pack"
    PUSH = "git-receive-pack"


@dataclass(frozen=True)
class GitRoute:
    """The sandbox and the service of a request. `lists`: it lists refs; otherwise it transfers objects."""

    project: str
    sandbox: str
    service: Service
    lists: bool


def route_of(method: str, path: bytes, query: bytes, content_type: str) -> GitRoute | None:
    """The route of a request; None if the proxy does not serve the request. `path` is not decoded."""
    match = _PATH.fullmatch(path.decode("ascii", "replace"))
    if match is None:
        return None
    if match["end"] == "info/refs":
        services = {f"service={service}".encode(): service for service in Service}
        if method != "GET" or query not in services:
            return None
        return GitRoute(match["project"], match["sandbox"], services[query], lists=True)
    service = Service(match["end"])
    if method != "POST" or query or content_type != f"application/x-{service}-request":
        return None
    return GitRoute(match["project"], match["sandbox"], service, lists=False)


def password_of(authorization: Iterable[bytes]) -> str | None:
    """The password of basic authentication; None if there is none, or if there is more than one header."""
    headers = list(authorization)
    if len(headers) != 1 or len(headers[0]) > _MAX_AUTHORIZATION_BYTES:
        return None
    kind, _, text = headers[0].partition(b" ")
    if kind.lower() != b"basic":
        return None
    try:
        return base64.b64decode(text, validate=True).decode("ascii").partition(":")[2]
    except (binascii.Error, UnicodeDecodeError):
        return None
