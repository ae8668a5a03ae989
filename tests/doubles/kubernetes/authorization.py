"""Authorization of an API server: every request needs a rule that allows it, as with RBAC."""

from aiohttp import web

from tests.doubles.kubernetes.store import ApiError, Json

_USER = "system:serviceaccount:sandherd:sandherd-spawner"
_VERBS = {"POST": "create", "PATCH": "patch", "DELETE": "delete"}


def authorize(request: web.Request, rules: list[Json]) -> None:
    """Check a request. Raises `ApiError` 403. Any client may discover the API groups and versions."""
    requested = request.match_info
    resource = requested.get("resource")
    if resource is None:
        return
    group = requested.get("group", "")
    verbs = [verb_of(request)]
    if request.path.endswith("/exec"):  # a WebSocket is opened with a GET; newer servers also require the other verb
        resource, verbs = f"{resource}/exec", ["get", "create"]
    if request.path.endswith("/log"):
        resource = f"{resource}/log"
    for verb in verbs:
        if "namespace" not in requested or not any(_allows(rule, group, resource, verb) for rule in rules):
            raise forbidden(verb, resource, group)


def verb_of(request: web.Request) -> str:
    """The verb of a request, as a role names it."""
    if request.method != "GET":
        return _VERBS[request.method]
    if "name" in request.match_info:
        return "get"
    return "watch" if request.query.get("watch") in {"true", "1"} else "list"


def _allows(rule: Json, group: str, resource: str, verb: str) -> bool:
    return group in rule["apiGroups"] and resource in rule["resources"] and verb in rule["verbs"]


def forbidden(verb: str, resource: str, group: str = "") -> ApiError:
    """The error for a request that no rule permits."""
    message = (
        f'{resource} is forbidden: User "{_USER}" cannot {verb} resource "{resource}" in API group "{group}" '
        'in the namespace "sandherd"'
    )
    return ApiError(403, "Forbidden", message, kind=resource)
