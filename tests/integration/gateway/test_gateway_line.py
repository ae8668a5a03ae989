"""The HTTP API on real parts: a task from its submission to its result, and all that a token may not do."""

import asyncio
from typing import Any

from tests.integration.gateway.conftest import Api
from tests.patience import PATIENCE

SPEC: dict[str, Any] = {"text": "talk", "harness": {"kind": "command", "argv": ["sh", "-c", "echo hello"]}}


async def test_task_from_submission_to_result_over_http(api: Api) -> None:
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
    async with asyncio.timeout(PATIENCE):
        while not (output := (await api.call("GET", f"/api/v1/sandboxes/{sandbox}/output"))[1])["chunks"]:
            await asyncio.sleep(0.2)
    assert "hello" in output["chunks"][0]["text"]
    for path in ("tasks", "sandboxes", "events", f"sandboxes/{sandbox}", f"sandboxes/{sandbox}/events",
                 f"sandboxes/{sandbox}/trajectory", "approvals", "monitor/report", "budgets", "branches", "audit",
                 "dead-letters", "health", "sandboxes/health"):  # fmt: skip
        status, found, _ = await api.call("GET", f"/api/v1/{path}")
        assert status == 200, (path, found)
    for method, path in (("POST", "events"), ("GET", "messages")):
        status, found, _ = await api.call(method, f"/api/v1/sandboxes/{sandbox}/{path}")
        assert (status, found["code"]) == (410, "refused")
    assert (await api.call("POST", f"/api/v1/tasks/{task['task']}/cancel"))[0] == 409
