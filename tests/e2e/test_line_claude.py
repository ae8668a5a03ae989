"""Claude as a user has it: the command, the stack, a sandbox, the real SDK; only the model is scripted."""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.e2e.line import HOLD, Given, Line
from tests.models.anthropic import AnthropicModel, Request, anthropic_model
from tests.models.anthropic_answers import Answer, Failure, calls, writes

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.agents,
    pytest.mark.timeout(900),
]

KEY = "sk-ant-scripted-0123456789"


@pytest.fixture
async def model() -> AsyncIterator[AnthropicModel]:
    """A model with scripted responses."""
    async with anthropic_model() as model:
        yield model


def claude(model: AnthropicModel, *options: str) -> list[str]:
    """The words of a user after the task."""
    env = (f"ANTHROPIC_BASE_URL={model.url}", "CLAUDE_CODE_MAX_RETRIES=0")
    given = [word for item in env for word in ("--env", item)]
    return ["--harness", "claude", *given, "--secret-env", f"ANTHROPIC_API_KEY={KEY}", *options]


def until_received(text: str, model: AnthropicModel, then: Answer) -> Any:
    """Be busy until the model receives this text, then continue. No two calls are equal: the monitor finds loops."""

    def step(requested: Request) -> Answer:
        if text in requested.words:
            return then
        model.script(step)
        return calls("Bash", command=f"sleep 0.1  # {len(model.requests)}")

    return step


async def test_task_is_completed_after_a_rate_limit(line: Line, model: AnthropicModel) -> None:
    """A 429 fails the attempt with its reason, and the next one edits and runs: shown live, and stored completely."""
    edit = calls("Write", file_path="hello.py", content="print('from inside')\n")
    model.script(
        Failure(status=429, message="too many"), edit, calls("Bash", command="python3 hello.py"), writes("Ok.")
    )
    done = await line("run", "Greet", *claude(model, "--attempts", "2"))
    shown = done.checked_output()
    for words in ("model_unavailable", "task.retry_scheduled", "+print('from inside')", "│ from inside", "0.0024 $"):
        assert words in shown
    assert KEY not in shown
    task = (await line("tasks", "get", shown.split()[0], "-o", "json")).document()
    assert (task["attempt"], task["result"]["cost_micro_usd"], task["result"]["final_output"]) == (2, 2400, "Ok.")
    events = map(json.loads, (await line("events", task["sandbox"], "-o", "json")).checked_output().splitlines())
    published = [event for event in events if event["source"] == f"/sandherd/sandbox/{task['sandbox']}"]
    assert [event["sequence"] for event in published] == list(range(1, len(published) + 1))
    kinds = [event["type"].removeprefix("agent.") for event in published]
    for kind in ("turn_started", "tool_use", "tool_completed", "file_edited", "usage", "turn_completed", "completed"):
        assert kind in kinds
    (edited,) = [event["data"] for event in published if event["type"] == "agent.file_edited"]
    assert (edited["file_path"], edited["change_type"]) == ("hello.py", "created")
    assert "+print('from inside')" in edited["full_diff"]


async def test_claude_gets_a_message_and_is_cancelled(line: Line, model: AnthropicModel) -> None:
    """The model gets the message in the same turn; the cancelled task has a transcript with the session's name."""
    model.script(until_received("mind the gap", model, calls("Bash", command=HOLD)))
    async with line.given("Work", *claude(model)) as given:
        await given.event("agent.tool_completed")
        receipt = await given.send("mind the gap")
        assert receipt["state"] == "acknowledged"
        await given.appears("began")
        assert "mind the gap" in model.requests[-1].words
        assert await given.events("agent.turn_completed") == []
        await given.event("message.acknowledged", message_id=receipt["message"])
        (await line("tasks", "cancel", given.task, "--reason", "enough")).checked_output()
        await given.gone()
        assert (await given.herd.task(given.task)).state == "cancelled"
        assert model.requests[0].session in await given.sessions()


async def test_approvals_of_claude_are_granted_and_denied(line: Line, model: AnthropicModel) -> None:
    """A granted call runs, a denied one does not, and the model gets the reason. An interrupt keeps the session."""
    model.script(
        calls("Bash", command="touch granted"),
        calls("Bash", command="touch denied"),
        lambda requested: (
            calls("Read", file_path="granted") if "not that one" in requested.words else writes("It was not told.")
        ),
        calls("Bash", command=HOLD),
        writes("Stopped."),
        writes("Again."),
    )
    async with line.given("Work", *claude(model, "--ask", "Bash", "--linger", "600")) as given:
        await answer(given, "granted", "grant")
        await answer(given, "denied", "deny", "--reason", "not that one")
        await answer(given, "began", "grant")
        work = (await given.appears("began")).parent
        assert ((work / "granted").exists(), (work / "denied").exists()) == (True, False)
        assert (await given.send("hold on", "--interrupt"))["state"] == "acknowledged"
        await given.event("agent.completed", final_output="Stopped.")
        assert (await given.send("and now?"))["state"] == "acknowledged"
        await given.event("agent.message", content="Again.")
        await given.event("agent.turn_completed", count=3)
        stops = [event["data"]["stop_reason"] for event in await given.events("agent.turn_completed")]
        assert stops == ["interrupted", "end_turn", "end_turn"]
        assert "Stopped." in model.requests[-1].words
        assert {requested.session for requested in model.requests} == {model.requests[0].session}


async def answer(given: Given, word: str, verdict: str, *options: str) -> None:
    """Wait until the agent requests a command with this word, and decide."""
    requested = await given.requested("Bash")
    assert word in requested["input"]["command"]
    (await given.line("approvals", verdict, requested["sandbox"], requested["approval_id"], *options)).checked_output()


async def test_killed_program_has_one_end(line: Line, model: AnthropicModel) -> None:
    """After a SIGKILL in its sandbox there is one failure, and no process remains, not even a daemon."""
    model.script(calls("Bash", command=f"(setsid sleep 4716 &); {HOLD}"))
    async with line.given("Work", *claude(model)) as given:
        await given.appears("began")
        (await given.program("claude")).kill()
        await given.gone()
        (failed,) = await given.events("agent.completed", "agent.failed")
        assert failed["data"]["error_type"] == "signal"
        task = (await line("tasks", "get", given.task, "-o", "json")).document()
        assert (task["state"], task["error_type"], task["attempt"]) == ("failed", "signal", 1)


async def test_wrong_key_is_reported_as_refused(line: Line, model: AnthropicModel) -> None:
    """The command and the task report it, and the task is not retried."""
    model.script(Failure(status=401, message="invalid x-api-key"))
    ran = await line("run", "Work", *claude(model))
    assert ran.status == 1
    assert "Fix external API key (model_refused)" in ran.out
    shown = (await line("tasks", "get", ran.out.split()[0])).checked_output()
    assert "Invalid API key" in shown
    assert "model_refused" in shown
    assert len(model.requests) == 1


async def test_unreachable_model_address_is_a_temporary_failure(line: Line) -> None:
    """The error has the agent's own message, and the type that is retried."""
    async with anthropic_model() as unused_model:
        pass
    ran = await line("run", "Work", *claude(unused_model, "--attempts", "1"))
    assert ran.status == 1
    assert "(model_unavailable)" in ran.out
