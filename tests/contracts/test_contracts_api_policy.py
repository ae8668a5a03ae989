"""The HTTP API of a release keeps working: changes that break clients are found, and others are permitted."""

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.releases.api_policy import LAST, TODAY, breaks

TASKS = "/api/v1/tasks"
DOCUMENT: Any = json.loads(TODAY.read_bytes())
"""Three paths of the document: the others are compared in the same way."""
DOCUMENT["paths"] = {path: DOCUMENT["paths"][path] for path in (TASKS, "/api/v1/session", "/api/v1/sign-in")}


def _without_route(new: Any) -> None:
    del new["paths"][TASKS]["post"]


def _without_parameter(new: Any) -> None:
    operation = new["paths"][TASKS]["get"]
    operation["parameters"] = [one for one in operation["parameters"] if one["name"] != "limit"]


def _required_parameter(new: Any) -> None:
    new["paths"][TASKS]["get"]["parameters"].append({"in": "query", "name": "x", "required": True, "schema": {}})


def _narrower_body(new: Any) -> None:
    new["components"]["schemas"]["TaskBody"]["properties"]["text"]["maxLength"] = 3


def _without_response(new: Any) -> None:
    del new["paths"][TASKS]["post"]["responses"]["202"]


def _without_type(new: Any) -> None:
    content = new["paths"][TASKS]["get"]["responses"]["200"]["content"]
    content["text/plain"] = content.pop("application/json")


def _without_body(new: Any) -> None:
    del new["paths"][TASKS]["post"]["requestBody"]


def _without_field(new: Any) -> None:
    del new["components"]["schemas"]["SessionView"]["properties"]["role"]
    new["components"]["schemas"]["SessionView"]["required"].remove("role")


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (_without_route, "POST /api/v1/tasks: it no longer exists"),
        (_without_parameter, "GET /api/v1/tasks: query parameter limit: it no longer exists"),
        (_required_parameter, "GET /api/v1/tasks: query parameter x: it is required"),
        (_narrower_body, "POST /api/v1/tasks: body: text: "),
        (_without_response, "POST /api/v1/tasks: 202: there is no such response"),
        (_without_type, "GET /api/v1/tasks: 200: application/json: it no longer exists"),
        (_without_body, "POST /api/v1/tasks: body: application/json: it no longer exists"),
        (_without_field, "GET /api/v1/session: 200: role: "),
    ],
)
def test_breaking_change_is_found(change: Callable[[Any], None], named: str) -> None:
    """The finding names the route and what has changed."""
    new = copy.deepcopy(DOCUMENT)
    change(new)
    assert any(line.startswith(named) for line in breaks(DOCUMENT, new)), breaks(DOCUMENT, new)


def test_additions_are_permitted() -> None:
    """A new route, an optional parameter and a further field break no client; today's API fits the last release's."""
    old = copy.deepcopy(DOCUMENT)
    del old["paths"]["/api/v1/sign-in"]
    old["paths"][TASKS]["get"]["parameters"].pop()
    del old["components"]["schemas"]["SessionView"]["properties"]["name"]
    old["components"]["schemas"]["SessionView"]["required"].remove("name")
    assert breaks(old, DOCUMENT) == []
    assert breaks(json.loads(LAST.read_bytes()), json.loads(TODAY.read_bytes())) == []
