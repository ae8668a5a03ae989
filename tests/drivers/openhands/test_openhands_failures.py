"""Failures of the real OpenHands agent and how they are reported."""

import shlex
from pathlib import Path
from typing import Any

import pytest

from tests.drivers.openhands.conftest import StartOpenHands, appears
from tests.models.openai import OpenAIModel
from tests.models.openai_answers import Answer, Call, Failure, Usage, calls

pytestmark = [pytest.mark.agents, pytest.mark.timeout(900)]  # a start is seconds of work for a whole core


async def test_model_and_tool_failures_end_only_their_turn(openhands: StartOpenHands, model: OpenAIModel) -> None:
    """An unreachable or refusing model ends the turn, and once the task; the next message is accepted.

    An unknown tool, an unreadable call and a failing call are errors of calls. The iteration limit ends the turn.
    """
    model.script(Failure(status=503, message="come back later"), Failure(status=401, message="no such key"))
    driver = await openhands("Try.", max_iterations=4)
    result = await driver.received("driver.result")
    assert (result["error_type"], result["stop_reason"]) == ("model_unavailable", "LLMServiceUnavailableError")
    assert "LLMServiceUnavailableError" in result["error"]
    driver.message("Again.")
    await driver.received("agent.turn_completed", turn=2, stop_reason="LLMAuthenticationError")
    assert [line["error"].partition(":")[0] for line in driver.emitted("agent.error")] == [
        "LLMServiceUnavailableError",
        "LLMAuthenticationError",
    ]
    model.script(
        Answer(calls=(Call("teleport", {"to": "moon"}, "call_none"),)),
        Answer(calls=(Call("terminal", '{"command": "unfinished', "call_broken"),)),
        Answer(calls=(Call("file_editor", {"command": "view", "path": "/no/such/file"}, "call_failed"),)),
        calls("terminal", command="true"),
    )
    driver.message("Try everything.")
    await driver.received("agent.turn_completed", turn=3, stop_reason="max_iterations")
    results = {line["tool_use_id"]: line for line in driver.emitted("agent.tool_result")}
    assert [results[call]["is_error"] for call in ("call_none", "call_broken", "call_failed")] == [True] * 3
    assert "teleport" in results["call_none"]["result"]
    assert {line["tool_use_id"] for line in driver.emitted("agent.tool_completed")} == results.keys()
    assert len(model.requests) == 6
    assert len(driver.emitted("driver.result")) == 1


async def test_turn_that_does_not_stop_in_time_is_charged(openhands: StartOpenHands, model: OpenAIModel) -> None:
    """The turn is charged as far as it has got, before its outcome is reported."""
    stubborn = "trap '' INT; touch began; while :; do sleep 0.02; done"
    model.script(
        calls(
            "terminal", command=f"sh -c {shlex.quote(stubborn)}", usage=Usage(prompt_tokens=1000, completion_tokens=50)
        )
    )
    driver = await openhands("Work.")
    await appears(driver.work_dir / "began")
    driver.send("stop", grace=0)
    assert await driver.ended() == 0
    types = [line["type"] for line in driver.lines if line["type"] in {"agent.usage", "driver.result"}]
    assert types == ["agent.usage", "driver.result"]
    assert driver.emitted("agent.usage")[0]["input_tokens"] == 1000
    assert driver.emitted("driver.result")[0]["error_type"] == "stopped"


@pytest.mark.parametrize(
    ("env", "resume", "error"),
    [
        ({"LLM_MODEL": ""}, None, "no model is set"),
        ({}, {"session_id": "0b7e0f3c-0000-4000-8000-000000000000", "transcript": "nowhere"}, "nowhere"),
        ({}, {"session_id": "../../escape", "transcript": "empty"}, "empty"),
    ],
    ids=["no model", "no transcript", "no session"],
)
async def test_impossible_start_is_reported_as_start_error(
    openhands: StartOpenHands,
    model: OpenAIModel,
    tmp_path: Path,
    env: dict[str, str],
    resume: dict[str, Any] | None,
    error: str,
) -> None:
    """The result names the reason, waiting messages are refused, and the driver ends with status 0."""
    (tmp_path / "empty").touch()
    if resume is not None:
        resume = {**resume, "transcript": str(tmp_path / resume["transcript"])}
    driver = await openhands("Begin.", env=env, resume=resume, messages=["Are you there?"])
    result = await driver.received("driver.result")
    assert result["error_type"] == "start"
    assert error in result["error"]
    assert await driver.ended() == 0
    assert [line["message"] for line in driver.emitted("driver.refused")] == ["msg-1"]
    assert model.requests == []
