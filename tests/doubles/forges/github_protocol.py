"""Requests and responses against GitHub's document, and GitHub's refusals of invalid requests."""

import json
from typing import TYPE_CHECKING, Any, Final

from tests.doubles.forges.calls import Call
from tests.doubles.forges.github_pull_shapes import error
from tests.doubles.forges.openapi import Document, Mismatch, Operation
from tests.doubles.forges.replies import ABSENT, Reply

if TYPE_CHECKING:
    from tests.doubles.forges.github import GitHub

_ERROR: Final = {"$ref": "urn:forge#/components/schemas/basic-error"}
_ANYWHERE: Final = frozenset({400, 401, 403, 404, 429, 500, 502, 503})
"""Statuses that every operation may have, documented or not."""


def parse_body(raw: bytes) -> Any:
    """The JSON of a request. Raises 400."""
    if not raw:
        return ABSENT
    try:
        return json.loads(raw)
    except ValueError as problem:
        raise error(400, "Problems parsing JSON") from problem


def check_request(github: "GitHub", call: Call, operation: Operation) -> None:
    """Record what is not as documented. Raises 404 or 422 as GitHub does; it ignores unknown names."""
    path, body = (
        operation.mismatches_of_parameters("path", call.parameters),
        operation.mismatches_of_request(call.body, present=call.body is not ABSENT),
    )
    found = [
        *path,
        *operation.mismatches_of_parameters("query", call.query),
        *body,
    ]
    github.invalid_requests += [f"request {call.method} {call.path}: {one}" for one in found]
    if path:
        raise error(404, "Not Found")
    if serious := [one for one in found if not one.unknown]:
        raise error(422, "Invalid request.\n\n" + "\n".join(one.message for one in serious))


def check_reply(document: Document, operation: Operation, reply: Reply) -> list[Mismatch]:
    """What of a response is not as documented."""
    if not reply.is_json or reply.status == 304:
        return []
    present = reply.body is not ABSENT
    if reply.status not in operation.statuses and reply.status in _ANYWHERE:
        return document.mismatches(_ERROR, reply.body)
    return operation.mismatches_of_response(reply.status, reply.body, present=present)
