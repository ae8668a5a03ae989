"""The HTTP API on real parts: a task from its submission to its result, and all that a token may not do."""

import asyncio
from typing import Any

from sandherd.client import Herd
from tests.integration.gateway.conftest import Api
from tests.patience import PATIENCE
from tests.stored_history import all_stored

SPEC: dict[str, Any] = {
    "text": "talk",
    "harness": {"kind": "command", "argv": ["sh", "-c", "echo hello | tee greeting.txt"]},
}


async def test_task_from_submission_to_result_over_http(api: Api, client: Herd) -> None:
    """A task is submitted, its events arrive as they happen, and its result, output and history can be read."""
    async with asyncio.timeout(PATIENCE), api.stream("/api/v1/events/stream") as stream:
        assert (await stream.next())[0] == "ready"
        status, found, headers = await api.call(
            "POST", "/api/v1/tasks", json=SPEC, headers={"Idempotency-Key": "first"}
        )
        assert status == 202, found
        again = await api.call("POST", "/api/v1/tasks", json=SPEC, headers={"Idempotency-Key": "first"})
        assert again[1] == found
        seen: list[Any] = []
        positions: list[int] = []
        while not seen or seen[-1]["type"] != "task.completed":
            kind, position, event = await stream.next()
            assert event["type"] == kind
            seen.append(event)
            positions.append(int(position.partition("-")[2]))
    assert positions == sorted(set(positions))
    assert [event["type"] for event in seen].count("task.submitted") == 1
    assert next(event for event in seen if event["type"] == "task.submitted")["data"]["submitted_by"] == "token:all"
    status, task, _ = await api.call("GET", headers["Location"])
    assert (status, task["state"]) == (200, "completed")
    sandbox = task["sandbox"]
    assert "hello" in await _output(api, sandbox)
    await all_stored(client)
    for path in ("tasks", "sandboxes", "events", f"sandboxes/{sandbox}", f"sandboxes/{sandbox}/events",
                 f"sandboxes/{sandbox}/trajectory", "approvals", "monitor/report", "budgets", "branches", "audit",
                 "overview", "statistics?by=day", f"comparison?first={sandbox}&second={sandbox}", "search?text=talk",
                 f"sandboxes/{sandbox}/transcript", f"sandboxes/{sandbox}/file-versions",
                 "dead-letters", "health", "sandboxes/health"):  # fmt: skip
        status, found, _ = await api.call("GET", f"/api/v1/{path}")
        assert status == 200, (path, found)
    await _check_history(api, sandbox, task["task"])
    for method, path in (("POST", "events"), ("GET", "messages")):
        status, found, _ = await api.call(method, f"/api/v1/sandboxes/{sandbox}/{path}")
        assert (status, found["code"]) == (410, "refused")
    assert (await api.call("POST", f"/api/v1/tasks/{task['task']}/cancel"))[0] == 409


async def _output(api: Api, sandbox: str) -> str:
    async with asyncio.timeout(PATIENCE):
        while not (output := (await api.call("GET", f"/api/v1/sandboxes/{sandbox}/output"))[1])["chunks"]:
            await asyncio.sleep(0.2)
    text: str = output["chunks"][0]["text"]
    return text


async def _check_history(api: Api, sandbox: str, task: str) -> None:
    """Check the stored data of the task, and typed refusals."""
    spec = SPEC | {"harness": {"argv": SPEC["harness"]["argv"]}}  # without defaults, such as the kind of a command
    assert (await api.call("GET", f"/api/v1/tasks/{task}/submitted"))[1] == {"task": task, "spec": spec}
    overview = (await api.call("GET", "/api/v1/overview"))[1]
    assert overview["tasks"]["completed"] == 1
    assert sum(bucket["events"] for bucket in overview["buckets"]) > 0
    [hit] = [one for one in (await api.call("GET", "/api/v1/search?text=TALK"))[1]["hits"] if one["entity"] == task]
    assert (hit["type"], hit["snippet"], hit["matches"]) == ("task.submitted", "talk", [{"start": 0, "end": 4}])
    query = f"/api/v1/sandboxes/{sandbox}/file-version?file_path=greeting.txt"
    status, found, _ = await api.call("GET", query)
    assert (status, found["content"], found["verified"]) == (200, "hello\n", True), found
    for path, refusal in (
        ("search?text=-talk", (422, "invalid_field")),
        (f"search?text=talk&cursor={'A' * 24}", (422, "invalid_field")),
        ("overview?seconds=2000000", (422, "invalid_field")),
        (f"comparison?first={sandbox}&second=sbx-none", (404, "not_found")),
        ("sandboxes/sbx-none/transcript", (404, "not_found")),
        (query.removeprefix("/api/v1/") + "&number=9", (404, "not_found")),
    ):
        status, found, _ = await api.call("GET", f"/api/v1/{path}")
        assert (status, found["code"]) == refusal, (path, found)
