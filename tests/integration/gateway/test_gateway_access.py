"""Requests without a token, or with another project's, a revoked or an expired one, can do nothing, by any route."""

import asyncio
import json
import re
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import aiohttp

from gateway.request_guard import MAX_BODY
from sandherd.client import Herd
from sandherd.stack.broker import Broker
from tests.integration.gateway.conftest import OTHER, Api, herd_context
from tests.polling import eventually
from tests.stored_history import all_stored

SANDBOX: Final = "sbx-foreign"
NAMES: Final = {"task": "task-foreign", "sandbox": SANDBOX, "approval": "a1", "artifact": "art-foreign", "number": "1",
    "rule": "loop", "command": "exc-foreign", "branch": "br-00000000000000000000", "schedule": "foreign",
    "secret": "foreign", "subscription": "foreign", "webhook": "foreign"}  # fmt: skip
BODIES: Final[dict[str, Any]] = {
    "submit_task": {"text": "x", "harness": {"kind": "command", "argv": ["true"]}},
    "terminate_sandbox": {"reason": "x"},
    "send_message": {"content": "x"},
    "decide_approval": {"granted": True},
    "start_command": {"command": ["true"]},
    "command_input": {},
    "kill_command": {},
    "extend_sandbox": {"seconds": 60},
    "grant_budget": {"more": {"turns": 1}},
    "create_webhook": {"url": "https://example.com/events"},
    "replay_webhook": {},
}
QUERIES: Final = {operation: {"path": "x"} for operation in ("download_file", "upload_file")} | {
    "file_version": {"file_path": "x"}
}
OWN: Final = {"submit_task", "set_schedule", "set_secret", "set_subscription", "create_webhook"}
"""Operations that create an object of the token's own project, whatever other projects have."""
LISTED: Final = {"tasks", "sandboxes", "events", "approvals", "branches", "letters"}
DOCUMENT: Final = Path(__file__).parents[3] / "docs" / "openapi.json"
"""The document generated from the application: generating it here would take half a second of each test process."""
ROUTES: Final = sorted(
    (method.upper(), path, operation["operationId"])
    for path, methods in json.loads(DOCUMENT.read_text())["paths"].items()
    for method, operation in methods.items()
)

OF_THE_PROJECT: Final = {operation for _, path, operation in ROUTES if "{" not in path}


async def answers(api: Api) -> dict[str, tuple[int, Any]]:
    """The reply of each route about objects that the project does not have, by the name of its operation."""
    found = {}
    for method, path, operation in ROUTES:
        if operation in {*OWN, "stream_events"} or "/session" in path or "/sign-in" in path:
            continue  # a stream has no end and belongs to the token's own project, and so do sessions
        filled = re.sub(r"\{(\w+)\}", lambda name: NAMES[name[1]], path)
        status, body, _ = await api.call(method, filled, json=BODIES.get(operation), params=QUERIES.get(operation))
        found[operation] = status, body
    return found


async def test_every_route_is_closed_without_a_valid_token(api: Api, herd: Broker, client: Herd) -> None:
    """No route, existing or not, shows anything to a request without a valid token."""
    revoked = (await client.create_token("soon-revoked", "operate")).text
    assert (await Api(api.url, api.session, revoked).call("GET", "/api/v1/tasks"))[0] == 200
    await client.revoke_token("soon-revoked")
    for token in ("", "shd_p1_" + "A" * 43, revoked):
        outsider = Api(api.url, api.session, token)
        closed = [path for _, path, _ in ROUTES if "/sign-in" not in path]
        for path in [*closed, "/api/nowhere", "/api/v1/openapi.json"]:
            status, body, headers = await outsider.call("GET", path.replace("{", "").replace("}", ""))
            assert (status, body["code"], headers["WWW-Authenticate"]) == (401, "refused", "Bearer"), path
    names = {one.name for one in (await client.tokens()).tokens}
    assert names == {"all"}


async def test_other_projects_token_finds_nothing(api: Api, herd: Broker, http: aiohttp.ClientSession) -> None:
    """In every route of the table, an object of one project is unknown to the token of another."""
    async with Herd.connect(herd_context(herd, OTHER)) as other:
        stranger = Api(api.url, http, (await other.create_token("all", "operate")).text)
    status, found, _ = await api.call("POST", "/api/v1/tasks", json=BODIES["submit_task"], params={"name": "task-mine"})
    assert status == 202, found
    await eventually(lambda: _is_listed(api, "task-mine"), "the task is listed")
    NAMES["task"] = "task-mine"
    for operation, (status, body) in (await answers(stranger)).items():
        listed = LISTED & set(body if isinstance(body, dict) else ())
        if listed:
            assert not any(body[name] for name in listed), operation
        elif operation in {"poll_messages", "post_event"}:
            assert status == 410
        elif operation in OF_THE_PROJECT:
            assert "task-mine" not in str(body)
        else:
            assert (status, body["code"]) == (404, "not_found"), (operation, body)
    assert (await api.call("GET", "/api/v1/tasks/task-mine"))[0] == 200


async def _is_listed(api: Api, task: str) -> bool:
    return task in str((await api.call("GET", "/api/v1/tasks"))[1])


async def test_roles_bounds_and_hosts_are_enforced(api: Api, client: Herd, http: aiohttp.ClientSession) -> None:
    """A reader may not change anything; a body that is too large and another host are refused."""
    reader = Api(api.url, http, (await client.create_token("reader", "read")).text)
    for operation in ("tasks", f"sandboxes/{SANDBOX}/messages"):
        status, body, _ = await reader.call("POST", f"/api/v1/{operation}", json=BODIES["submit_task"])
        assert (status, "--role work" in body["remedy"]) == (403, True)
    assert (await reader.call("GET", "/api/v1/audit"))[0] == 403
    assert (await reader.call("DELETE", "/api/v1/tasks"))[0] == 405
    large = b'{"text": "' + b"x" * MAX_BODY + b'"}'
    for data in (large, _chunks(large)):
        status, body, _ = await api.call("POST", "/api/v1/tasks", data=data)
        assert (status, body["code"]) == (413, "too_large")
    for host in ("evil.example", "localhost.evil.example"):
        status, body, _ = await api.call("GET", "/api/v1/tasks", headers={"Host": host})
        assert (status, body["field"]) == (421, "Host")
    status, body, _ = await api.call("POST", "/api/v1/tasks", json={"text": "x", "harnes": {"secret": "hunter2"}})
    assert (status, body["code"], "hunter2" in str(body)) == (422, "invalid_field", False)


async def test_requests_are_taken_literally(api: Api) -> None:
    """Unknown or forged fields, and requests for another state, are refused by name; a URL's credential is not read."""
    for path, field in (
        ("tasks?stat=failed", "stat"),
        ("tasks/task-x?token=shd_p1_x", "token"),
        ("health?x=1", "x"),
        ("branches?cursor=x", "cursor"),
        ("events?cursor=forged", "cursor"),
        ("tasks?past=true&cursor=W10", "cursor"),
    ):
        status, body, headers = await api.call("GET", f"/api/v1/{path}")
        assert (status, body.get("field")) == (422, field), path
        assert headers["X-Request-Id"].startswith("req-")
    async with api.session.get(f"{api.url}/api/v1/tasks?token={api.token}&access_token={api.token}") as response:
        assert response.status == 401
    for path, allowed in (("tasks", "GET, POST"), ("session", "DELETE, GET, POST"), (f"sandboxes/{SANDBOX}", "GET")):
        status, _, headers = await api.call("PUT", f"/api/v1/{path}")
        assert (status, headers["Allow"]) == (405, allowed)
    spec = BODIES["submit_task"] | {"harness": {"kind": "command", "argv": ["sleep", "600"]}}
    assert (await api.call("POST", "/api/v1/tasks?name=task-tag", json=spec))[0] == 202
    tagged = "/api/v1/tasks/task-tag"
    await eventually(partial(_has_state, api, tagged, "running"), "the task runs")
    _, _, headers = await api.call("GET", tagged)
    tag = headers["ETag"]
    assert (await api.call("GET", tagged, headers={"If-None-Match": tag}))[0] == 304
    status, body, _ = await api.call("POST", f"{tagged}/cancel", headers={"If-Match": '"other"'})
    assert (status, body["field"]) == (412, "If-Match")
    assert (await api.call("POST", f"{tagged}/cancel", headers={"If-Match": "*"}))[0] == 202
    await eventually(partial(_has_state, api, tagged, "cancelled"), "the task is cancelled")
    assert (await api.call("GET", tagged, headers={"If-None-Match": tag}))[0] == 200


async def _has_state(api: Api, path: str, state: str) -> bool:
    return str((await api.call("GET", path))[1].get("state")) == state


async def _chunks(data: bytes) -> Any:
    for start in range(0, len(data), 65_536):
        yield data[start : start + 65_536]


async def test_key_with_other_content_is_refused_by_an_event(api: Api, client: Herd) -> None:
    """A key that is reused for other content is refused visibly, and reaches nothing that another token created.

    The broker drops a command whose id it has; so the id depends on the content, and the name on token and route.
    """
    spec = BODIES["submit_task"]
    other = Api(api.url, api.session, (await client.create_token("other", "work")).text)
    key = {"Idempotency-Key": "deploy-1"}
    calls = [api.call("POST", "/api/v1/tasks", json=spec, headers=key) for _ in range(3)]
    first, again, third = await asyncio.gather(*calls)
    changed = await api.call("POST", "/api/v1/tasks", json=spec | {"text": "y"}, headers=key)
    assert (first[0], again[1], third[1], changed[1]) == (202, first[1], first[1], first[1])
    named = [await api.call("POST", f"/api/v1/tasks?name={name}", json=spec, headers=key) for name in ("t-a", "t-b")]
    foreign = await other.call("POST", "/api/v1/tasks", json=spec, headers=key)
    assert foreign[1] != first[1]
    for task in ("t-a", "t-b", foreign[1]["name"]):
        await eventually(partial(_is_listed, api, task), f"{task} is created")
    assert [status for status, _, _ in named] == [202, 202]

    async def reported(kind: str) -> list[Any]:
        path = f"/api/v1/events?entity={first[1]['name']}&types={kind}"
        found: list[Any] = (await api.call("GET", path))[1]["events"]
        return found

    assert len(await eventually(lambda: reported("task.refused"), "the other content is refused")) == 1
    await all_stored(client)  # another batch may be stored first
    assert len(await reported("task.submitted")) == 1, "of requests at the same time one is carried out"


async def test_artifact_is_downloaded_by_its_own_project_only(
    api: Api, herd: Broker, http: aiohttp.ClientSession, client: Herd
) -> None:
    """The artifact arrives as an attachment that no browser renders; its name is unknown to another project."""
    async with Herd.connect(herd_context(herd, OTHER)) as other:
        stranger = Api(api.url, http, (await other.create_token("all", "operate")).text)
    harness = {"kind": "command", "argv": ["sh", "-c", "echo '<script>' >left.html"]}
    spec = {"text": "x", "harness": harness, "keep_work": True}
    assert (await api.call("POST", "/api/v1/tasks?name=task-left", json=spec))[0] == 202

    async def artifact() -> Any:
        return [one async for one in client.artifacts(task="task-left")]

    found = (await eventually(artifact, "the work tree is stored"))[0]
    path = f"/api/v1/artifacts/{found.name}"
    async with http.get(api.url + path, headers={"Authorization": f"Bearer {api.token}"}) as response:
        headers, data = response.headers, await response.read()
    assert (headers["Content-Type"], sha256(data).hexdigest()) == ("application/octet-stream", found.reference.sha256)
    assert headers["Content-Disposition"] == f'attachment; filename="{found.name}"'
    assert (headers["X-Content-Type-Options"], headers["Content-Length"]) == ("nosniff", str(found.size))
    for query in ("", "?task=task-left", f"?sandbox={found.entity}"):
        status, body, _ = await stranger.call("GET", path + query)
        assert (status, body["code"]) == (404, "not_found")
