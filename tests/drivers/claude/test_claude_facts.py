"""Facts that the monitor's rules need, from the real Claude agent: how calls end, what begins turns."""

import pytest

from tests.drivers.claude.conftest import UNTIL_ENOUGH, StartClaude
from tests.models.anthropic import AnthropicModel
from tests.models.anthropic_answers import Usage, calls, writes

pytestmark = pytest.mark.agents

ENDLESS = f"sh -c '{UNTIL_ENOUGH}'"


async def test_outcome_of_each_call_is_reported(claude: StartClaude, model: AnthropicModel) -> None:
    """A success and failures with exit status, a timeout, a rule's denial, and an error of a tool are distinguished."""
    model.script(
        calls("Bash", command="sh -c 'echo well'"),
        calls("Bash", command="sh -c 'echo bad; exit 3'"),
        calls("Bash", command=ENDLESS, timeout=1000),
        calls("Bash", command="touch no.txt"),
        calls("Read", file_path="missing.txt"),
        *[writes("done")] * 2,
    )
    driver = await claude("work", allowed_tools=["Bash(sh *)", "Read"])
    await driver.received("agent.turn_completed")
    outcomes = [
        ("ok", 0),
        ("failed", 3),
        ("timed_out", None),
        ("denied", None),
        ("failed", None),
    ]
    for kind in ("agent.tool_result", "agent.tool_completed"):
        assert [(line["outcome"], line["exit_code"]) for line in driver.emitted(kind)] == outcomes, kind
    assert not (driver.work_dir / "no.txt").exists()


async def test_what_begins_a_turn_is_reported(claude: StartClaude, model: AnthropicModel) -> None:
    """The end of a background task begins a turn by itself; a message begins one with its origin."""
    model.script(calls("Bash", command="sh -c 'echo well'", run_in_background=True), *[writes("done")] * 4)
    driver = await claude("work", allowed_tools=["Bash(sh *)"])
    await driver.received("driver.turn", state="idle", turn=2)
    driver.message("more", "guardian_nudge", origin="nudge")
    await driver.received("driver.turn", state="idle", turn=3)
    begun = [(line["prompt_preview"], line["origin"]) for line in driver.emitted("agent.turn_started")]
    assert begun == [("work", "task"), (None, "notice"), ("[GUARDIAN INTERVENTION] more", "nudge")]


async def test_compaction_is_reported(claude: StartClaude, model: AnthropicModel) -> None:
    """The program compacts a context that is too large, before and after are tokens; the summary is no user's."""
    full = Usage(input_tokens=180_000, output_tokens=100)
    model.script(calls("Bash", command="echo 1", usage=full), writes("<summary>SHORT</summary>"), *[writes("done")] * 2)
    driver = await claude("work", model="claude-sonnet-4-5", env={"CLAUDE_CODE_AUTO_COMPACT_WINDOW": "100000"})
    compacted = await driver.received("agent.context_compacted")
    assert (compacted["trigger"], compacted["turn"]) == ("automatic", 1)
    assert compacted["tokens_before"] > 180_000 > compacted["tokens_after"] > 0
    await driver.received("driver.turn", state="idle")
    assert [line["content"] for line in driver.emitted("agent.user_message")] == ["work"]
    notices = {line["metadata"]["subtype"]: line["metadata"] for line in driver.emitted("agent.system_message")}
    assert "SHORT" in notices["compact_summary"]["content"]
