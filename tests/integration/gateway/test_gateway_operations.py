"""The API's operations on sandboxes and the project, on a whole herd: their effects, and who is refused."""

import asyncio
import base64
from functools import partial
from typing import Any

import aiohttp

from sandherd.client import Herd
from sandherd.stack.broker import Broker
from tests.integration.gateway.conftest import OTHER, Api, herd_context
from tests.patience import PATIENCE
from tests.polling import eventually

COMMAND = {"command": ["sh", "-c", "cat; exit 3"], "stdin": base64.urlsafe_b64encode(b"hi").decode()}


async def test_sandbox_is_created_used_and_paused_over_http(
    api: Api, herd: Broker, http: aiohttp.ClientSession, client: Herd
) -> None:
    """A sandbox has commands, files and a lifecycle; a reader's token and another project's can use none of them."""
    reader = Api(api.url, http, (await client.create_token("reader", "read")).text)
    async with Herd.connect(herd_context(herd, OTHER)) as other:
        stranger = Api(api.url, http, (await other.create_token("all", "operate")).text)
    key = {"Idempotency-Key": "box"}
    created = [await api.call("POST", "/api/v1/sandboxes", json={}, headers=key) for _ in range(2)]
    assert [status for status, _, _ in created] == [202, 202]
    assert created[0][1] == created[1][1]
    place = created[0][2]["Location"]
    await eventually(partial(_has, api, place, state="running"), "the sandbox runs")

    await _check_files(api, http, place)
    await _check_command(api, place)
    await _check_refusals(reader, stranger, place)
    assert (await api.call("POST", f"{place}/extend", json={"seconds": 3600}))[0] == 202
    assert (await api.call("POST", f"{place}/pause", json={"reason": "look"}))[0] == 202
    await eventually(partial(_has, api, place, state="paused"), "it is paused")
    assert (await api.call("POST", f"{place}/resume"))[0] == 202
    await eventually(partial(_has, api, place, state="running"), "it runs again")
    assert (await api.call("POST", f"{place}/terminate", json={"reason": "done"}))[0] == 202
    await eventually(partial(_has, api, place, state="terminated"), "it has ended")
    ended = await api.call("POST", f"{place}/pause")
    assert (ended[0], ended[1]["code"]) == (409, "conflict")


async def _check_files(api: Api, http: aiohttp.ClientSession, place: str) -> None:
    """Check that a file is written, listed and read, also in its folder's archive, but never outside the work tree."""
    written = await api.call("PUT", f"{place}/files/content?path=a/b.txt&mode=600", data=b"<b>\x00 bytes")
    assert (written[0], written[1]["size"]) == (200, 10), written
    listed = (await api.call("GET", f"{place}/files?path=a"))[1]["entries"]
    assert [(one["path"], one["mode"]) for one in listed] == [("a/b.txt", 0o600)]
    for path, content in (("a/b.txt", b"<b>\x00 bytes"), ("a", b"b.txt")):
        async with http.get(f"{api.url}{place}/files/content?path={path}", headers=_token(api)) as response:
            data = await response.read()
            assert (response.status, response.headers["Content-Type"]) == (200, "application/octet-stream")
            assert response.headers["Content-Disposition"].startswith("attachment")
            assert content in data
    for path in ("../x", "none", "/etc/passwd"):
        assert (await api.call("GET", f"{place}/files/content?path={path}"))[0] in {404, 422, 403}, path


async def _check_command(api: Api, place: str) -> None:
    """Check that a command gets its input, and that its output and exit status can be read."""
    status, state, headers = await api.call("POST", f"{place}/exec", json=COMMAND)
    assert status == 202, state
    async with asyncio.timeout(PATIENCE):
        while not state["complete"]:
            state = (await api.call("GET", f"{headers['Location']}?wait_seconds=5"))[1]
    assert (state["exit_code"], base64.urlsafe_b64decode(state["output"][0]["data"])) == (3, b"hi")

    broken = await api.call("POST", f"{place}/exec", json=COMMAND | {"stdin": "?"})
    assert (broken[0], broken[1]["field"]) == (422, "stdin")


async def _check_refusals(reader: Api, stranger: Api, place: str) -> None:
    """Check that a reader is refused with the role that it needs, and that a stranger does not find the sandbox."""
    for method, path, body in (
        ("POST", "/exec", COMMAND),
        ("PUT", "/files/content?path=x", b"x"),
        ("POST", "/pause", {}),
        ("POST", "/extend", {"seconds": 60}),
        ("GET", "/log", None),
    ):
        options: dict[str, Any] = {"data": body} if isinstance(body, bytes) else {"json": body}
        refused = await reader.call(method, f"{place}{path}", **options)
        assert (refused[0], "work" in refused[1]["detail"]) == (403, True), path
        foreign = await stranger.call(method, f"{place}{path}", **options)
        assert foreign[0] == 404, (path, foreign)


async def _has(api: Api, path: str, **fields: Any) -> bool:
    status, found, _ = await api.call("GET", path)
    return status == 200 and all(found[name] == value for name, value in fields.items())


def _token(api: Api) -> dict[str, str]:
    return {"Authorization": f"Bearer {api.token}"}


async def test_project_is_set_up_over_http(api: Api) -> None:
    """Schedules, secrets, subscriptions and grants are set, shown and deleted; no response has a secret's value."""
    task = {"text": "x", "harness": {"kind": "command", "argv": ["true"]}, "secrets": {"KEY": "key"}}
    put, get, delete = (partial(api.call, method) for method in ("PUT", "GET", "DELETE"))
    status, view, _ = await put("/api/v1/secrets/key", json={"value": "correct-horse"})
    assert (status, view["updated_by"]) == (200, "token:all")
    assert "correct-horse" not in str(await get("/api/v1/secrets"))
    assert (await get("/api/v1/secrets"))[1]["secrets"][0]["name"] == "key"
    assert (await put("/api/v1/secrets/key", json={"value": ""}))[0] == 422

    schedule = {"schedule": {"cron": "0 3 * * *", "time_zone": "UTC", "task": task}}
    assert (await put("/api/v1/schedules/nightly", json=schedule))[0] == 200
    assert (await put("/api/v1/schedules/nightly", json=schedule))[1]["code"] == "conflict"
    assert (await get("/api/v1/schedules/nightly"))[1]["task"]["text"] == "x"
    paused = await api.call("POST", "/api/v1/schedules/nightly/pause")
    assert (paused[0], paused[1]["paused"]) == (200, True)
    started = (await api.call("POST", "/api/v1/schedules/nightly/trigger"))[1]["task"]
    await eventually(partial(_has, api, f"/api/v1/tasks/{started}"), "its task is created")
    plain = {"schedule": {**schedule["schedule"], "task": task | {"env": {"A": "b"}, "secret_env": ["A"]}}}
    assert (await put("/api/v1/schedules/plain", json=plain))[0] == 422
    assert (await delete("/api/v1/schedules/nightly"))[0] == 200
    assert (await get("/api/v1/schedules"))[1]["schedules"] == []

    subscribed = await put("/api/v1/subscriptions/bot", json={"types": ["task.completed"]})
    assert (subscribed[0], subscribed[1]["types"]) == (200, ["task.completed"])
    assert (await delete("/api/v1/subscriptions/bot"))[0] == 200
    grant = {"more": {"cost_micro_usd": 5}}
    assert (await api.call("POST", "/api/v1/tasks/task-none/budget", json=grant))[0] in {404, 409}
    for path in ("artifacts?task=" + started, "projects", "usage"):
        assert (await get(f"/api/v1/{path}"))[0] == 200, path
    assert (await get("/api/v1/artifacts"))[0] == 422
    for method, path in (("GET", ""), ("POST", "/push"), ("POST", "/merge"), ("DELETE", ""), ("POST", "/pull-request")):
        found = await api.call(method, f"/api/v1/branches/br-{'0' * 20}{path}")
        assert (found[0], found[1]["code"]) == (404, "not_found"), path
    assert (await delete("/api/v1/secrets/key?force=true"))[0] == 200
