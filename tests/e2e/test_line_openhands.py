"""OpenHands as a user has it: command, stack, sandbox, real SDK and terminal; only the model is scripted.

Each start takes seconds of a whole core, so that a test covers more here.
"""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from spawner.runtimes.bubblewrap import INSIDE
from tests.e2e.line import HOLD, Line
from tests.models.openai import OpenAIModel, Request, openai_model
from tests.models.openai_answers import Answer, Failure, calls, writes

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.agents,
    pytest.mark.timeout(900),
]

KEY = "sk-scripted-0123456789"
WORK = f"{INSIDE}/work"


@pytest.fixture
async def model() -> AsyncIterator[OpenAIModel]:
    """A model with scripted responses."""
    async with openai_model() as model:
        yield model


def openhands(model: OpenAIModel, *options: str) -> list[str]:
    """The words of a user after the task; the prices are those of a model without a price list."""
    env = {"LLM_BASE_URL": model.url, "LLM_NUM_RETRIES": "0"}
    env |= {"LLM_INPUT_COST_PER_TOKEN": "0.000002", "LLM_OUTPUT_COST_PER_TOKEN": "0.00001"}
    given = [word for name, value in env.items() for word in ("--env", f"{name}={value}")]
    key = ["--secret-env", f"LLM_API_KEY={KEY}"]
    return ["--harness", "openhands", "--model", "openai/scripted", *given, *key, *options]


def until_received(text: str, model: OpenAIModel, then: Answer) -> Any:
    """Be busy until the model receives this text, then continue. No two calls are equal: the monitor finds loops."""

    def step(requested: Request) -> Answer:
        if text in requested.words:
            return then
        model.script(step)
        return calls("terminal", command=f"sleep 0.1  # {len(model.requests)}")

    return step


async def test_openhands_edits_runs_and_is_interrupted(line: Line, model: OpenAIModel) -> None:
    """Edits are stored with their diffs; a message arrives within the turn; the transcript has the session's name."""
    model.script(
        calls("file_editor", command="create", path=f"{WORK}/hello.py", file_text="print('from inside')\n"),
        calls("terminal", command="python3 hello.py"),
        until_received("mind the gap", model, calls("terminal", command=HOLD)),
    )
    async with line.given("Greet", *openhands(model)) as given:
        await given.event("agent.tool_completed", count=2)
        receipt = await given.send("mind the gap")
        assert receipt["state"] == "acknowledged"
        await given.appears("began")
        assert "mind the gap" in model.requests[-1].words
        assert await given.events("agent.turn_completed") == []
        await given.event("message.acknowledged", message_id=receipt["message"])
        edited = (await given.event("agent.file_edited", file_path="hello.py"))["data"]
        assert "+print('from inside')" in edited["full_diff"]
        results = [event["data"]["result"] for event in await given.events("agent.tool_result")]
        assert "from inside" in results[1]
        (await line("tasks", "cancel", given.task)).checked_output()
        await given.gone()
        assert (await given.herd.task(given.task)).state == "cancelled"
        assert model.requests[0].session in await given.sessions()
        (spent,) = await given.events("agent.usage")
        assert spent["data"]["cost_micro_usd"] == 400 * len(model.requests)


@pytest.mark.long  # the driver alone: tests/drivers/openhands/test_openhands_messages.py; the whole: test_line_claude
async def test_approvals_of_openhands_are_granted_and_denied(line: Line, model: OpenAIModel) -> None:
    """A granted call runs, a denied one does not, and the model gets the reason.

    An interrupt keeps the session. If a model's server is overloaded afterwards, that turn has an error, and the task
    completes.
    """
    model.script(
        calls("terminal", command="touch granted"),
        calls("terminal", command="touch denied"),
        lambda requested: (
            calls("terminal", command=HOLD) if "not that one" in requested.words else writes("It was not told.")
        ),
        writes("Stopped."),
        Failure(status=429, message="too many"),
    )
    async with line.given("Work", *openhands(model, "--ask", "terminal", "--linger", "600")) as given:
        for word, *answer in (("granted", "grant"), ("denied", "deny", "--reason", "not that one"), ("began", "grant")):
            requested = await given.requested("terminal")
            assert word in requested["input"]["command"]
            verdict, *options = answer
            (
                await line("approvals", verdict, requested["sandbox"], requested["approval_id"], *options)
            ).checked_output()
        work = (await given.appears("began")).parent
        assert ((work / "granted").exists(), (work / "denied").exists()) == (True, False)
        assert (await given.send("hold on", "--interrupt"))["state"] == "acknowledged"
        await given.event("agent.completed", final_output="Stopped.")
        assert (await given.send("and now?"))["state"] == "acknowledged"
        assert "LLMRateLimitError" in (await given.event("agent.error"))["data"]["error"]
        assert {requested.session for requested in model.requests} == {model.requests[0].session}
