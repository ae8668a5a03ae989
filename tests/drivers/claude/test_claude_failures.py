"""Failures of the real Claude agent and their error types."""

from signal import SIGKILL, SIGTERM, Signals

import pytest

from tests.drivers.claude.conftest import UNTIL_ENOUGH, StartClaude, appears, program
from tests.models.anthropic import AnthropicModel
from tests.models.anthropic_answers import Failure, Usage, calls, writes

pytestmark = pytest.mark.agents


@pytest.mark.parametrize(
    ("status", "error_type", "text"),
    [
        (401, "model_refused", "API Error: 401"),
        (500, "model_unavailable", "API Error: 500"),
    ],
)
async def test_error_of_the_models_server_fails_the_task(
    claude: StartClaude, model: AnthropicModel, status: int, error_type: str, text: str
) -> None:
    """Only a temporary error is retryable. The session continues."""
    model.script(Failure(status=status, message="scripted"), writes("better"))
    driver = await claude("begin")
    result = await driver.received("driver.result")
    assert result["error_type"] == error_type
    assert text in result["error"]
    assert result["stop_reason"] == "api_error"
    assert driver.emitted("agent.message") == []
    assert text in driver.emitted("agent.error")[0]["error"]
    driver.message("again")
    await driver.received("agent.message", content="better")


async def test_rate_limited_request_is_retried_and_reported(claude: StartClaude, model: AnthropicModel) -> None:
    """A 429 of the model's server is retried, and a system message reports the retry."""
    model.script(Failure(status=429, headers={"retry-after": "0"}), writes("there"))
    driver = await claude("begin", env={"CLAUDE_CODE_MAX_RETRIES": "1"})
    assert (await driver.received("driver.result"))["error_type"] is None
    notices = [line["metadata"] for line in driver.emitted("agent.system_message")]
    assert [notice["error_status"] for notice in notices if notice["subtype"] == "api_retry"] == [429]


async def test_unreachable_model_address_is_a_temporary_failure(claude: StartClaude) -> None:
    """The result is `model_unavailable`, not a success."""
    driver = await claude("begin", env={"ANTHROPIC_BASE_URL": "http://127.0.0.1:9"})
    result = await driver.received("driver.result")
    assert result["error_type"] == "model_unavailable"
    assert result["stop_reason"] == "api_error"


async def test_exceeded_turn_limit_is_a_failure(claude: StartClaude, model: AnthropicModel) -> None:
    """The program is stopped after the permitted number of turns, and the task fails."""
    model.script(*(calls("Bash", command="true") for _ in range(3)))
    driver = await claude("begin", max_turns=2)
    result = await driver.received("driver.result")
    assert (result["error_type"], result["stop_reason"]) == ("exit_status", "max_turns")
    assert "2" in result["error"]
    assert len(model.requests) == 2


async def test_exceeded_budget_is_a_failure(claude: StartClaude, model: AnthropicModel) -> None:
    """A message after the failure is refused rather than dropped."""
    model.script(calls("Bash", command="true", usage=Usage(input_tokens=1_000_000)), writes("never said"))
    driver = await claude("begin", max_budget_micro_usd=500_000)
    result = await driver.received("driver.result")
    assert (result["error_type"], result["stop_reason"]) == ("exit_status", "max_budget")
    assert driver.emitted("agent.usage")[0]["cost_micro_usd"] > 500_000
    message = driver.message("go on")
    await driver.until(
        lambda: (
            message in [line["message"] for line in driver.emitted("driver.taken") + driver.emitted("driver.refused")]
        ),
        "the message was forgotten",
    )


@pytest.mark.parametrize("ended_by", [SIGKILL, SIGTERM], ids=["SIGKILL", "SIGTERM"])
async def test_killed_program_ends_the_driver_with_its_signal(
    claude: StartClaude, model: AnthropicModel, ended_by: Signals
) -> None:
    """A program killed during a command yields a stream error; waiting messages are refused, and the driver ends."""
    model.script(calls("Bash", command=UNTIL_ENOUGH))
    driver = await claude("work")
    await appears(driver.work_dir / "begun")
    message = driver.message("hello?")
    program(driver).send_signal(ended_by)
    result = await driver.received("driver.result")
    broken = driver.emitted("agent.stream_error")[0]
    assert await driver.ended() == 0
    if ended_by == SIGKILL:
        assert (result["error_type"], result["signal"], broken["error_type"]) == ("signal", SIGKILL, "sigkill")
        assert driver.emitted("agent.usage")[0]["input_tokens"] == 100
    else:
        assert result["error_type"] in {"signal", "exit_status"}
    assert driver.emitted("driver.refused")[0]["message"] == message
    assert driver.emitted("driver.transcript")


async def test_turn_that_does_not_stop_in_time_is_charged(claude: StartClaude, model: AnthropicModel) -> None:
    """The turn is charged as far as it has got, before its outcome is reported."""
    model.script(calls("Bash", command=UNTIL_ENOUGH))
    driver = await claude("work")
    await appears(driver.work_dir / "begun")
    driver.send("stop", grace=0)
    assert await driver.ended() == 0
    types = [line["type"] for line in driver.lines if line["type"] in {"agent.usage", "driver.result"}]
    assert types == ["agent.usage", "driver.result"]
    assert driver.emitted("agent.usage")[0]["input_tokens"] == 100
    assert driver.emitted("driver.result")[0]["error_type"] == "stopped"


async def test_program_killed_while_idle_leaves_the_outcome(claude: StartClaude, model: AnthropicModel) -> None:
    """The task was done; the kill is reported as an error of the stream."""
    model.script(writes("done"))
    driver = await claude("begin")
    await driver.received("driver.turn", state="idle")
    program(driver).send_signal(SIGKILL)
    assert (await driver.received("agent.stream_error"))["error_type"] == "sigkill"
    assert await driver.ended() == 0
    assert [line["error_type"] for line in driver.emitted("driver.result")] == [None]


async def test_missing_key_is_permanent_and_named(claude: StartClaude) -> None:
    """Another attempt would lack the key, too; a user has to set it."""
    driver = await claude("begin", env={"ANTHROPIC_API_KEY": ""})
    result = await driver.received("driver.result")
    assert result["error_type"] == "model_refused"
    assert "ANTHROPIC_API_KEY is not set; add --secret-env ANTHROPIC_API_KEY" in result["error"]
