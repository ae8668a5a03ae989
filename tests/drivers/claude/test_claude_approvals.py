"""Approvals of the real Claude agent for each tool call, in every mode, also of a subagent."""

import json

import pytest

from tests.drivers.claude.conftest import StartClaude
from tests.drivers.driver_process import DriverProcess
from tests.models.anthropic import AnthropicModel
from tests.models.anthropic_answers import Answer, Call, calls, writes

pytestmark = pytest.mark.agents

ASK = {"tools": {}, "otherwise": "ask"}


def decide(
    driver: DriverProcess, requested: dict[str, str], *, granted: bool, reason: str | None = None, by_user: bool = True
) -> None:
    driver.send("decide", approval_id=requested["approval_id"], granted=granted, reason=reason, by_user=by_user)


@pytest.mark.parametrize("mode", ["acceptEdits", "bypassPermissions"])
async def test_approval_is_requested_in_every_permission_mode(
    claude: StartClaude, model: AnthropicModel, mode: str
) -> None:
    """A granted tool runs; a denied one does not, and the model receives the reason."""
    model.script(
        calls("Write", file_path="yes.txt", content="1"),
        calls("Bash", command="touch no.txt"),
        writes("a pity"),
    )
    driver = await claude("work", permission_mode=mode, approvals=ASK)
    first = await driver.received("driver.ask")
    assert first["tool"] == "Write"
    assert first["input"]["content"] == "1"
    assert not (driver.work_dir / "yes.txt").exists()
    decide(driver, first, granted=True)
    second = await driver.received("driver.ask", 2)
    assert (second["tool"], second["input"]["command"]) == ("Bash", "touch no.txt")
    decide(driver, second, granted=False, reason="not on a Friday")
    await driver.received("driver.result", error_type=None)
    assert (driver.work_dir / "yes.txt").exists()
    assert not (driver.work_dir / "no.txt").exists()
    assert "not on a Friday" in model.requests[2].words
    results = driver.emitted("agent.tool_result")
    assert [(line["is_error"], line["outcome"]) for line in results] == [(False, "ok"), (True, "refused")]
    assert driver.emitted("agent.tool_completed")[1]["outcome"] == "refused"


@pytest.mark.parametrize("mode", ["default", "bypassPermissions"])
async def test_nothing_is_requested_where_policy_allows_all(
    claude: StartClaude, model: AnthropicModel, mode: str
) -> None:
    """Permissions that the program itself would request are granted without an approval."""
    model.script(calls("Bash", command="touch a.txt"), calls("Write", file_path="b.txt", content="1"), writes("done"))
    driver = await claude("work", permission_mode=mode)
    await driver.received("driver.result", error_type=None)
    assert driver.emitted("driver.ask") == []
    assert {path.name for path in driver.work_dir.iterdir()} == {"a.txt", "b.txt"}


async def test_interrupt_withdraws_the_approval(claude: StartClaude, model: AnthropicModel) -> None:
    """The turn ends, a late decision has no effect, and the session continues."""
    model.script(calls("Bash", command="touch no.txt"), writes("better"))
    driver = await claude("work", approvals=ASK)
    requested = await driver.received("driver.ask")
    driver.send("interrupt")
    await driver.received("driver.turn", state="idle", turn=1)
    assert [line["outcome"] for line in driver.emitted("agent.tool_result")] == ["cancelled"]
    decide(driver, requested, granted=True)
    driver.message("go on")
    await driver.received("agent.message", content="better")
    assert not (driver.work_dir / "no.txt").exists()


async def test_work_tree_cannot_disable_approvals(claude: StartClaude, model: AnthropicModel) -> None:
    """The work tree's hooks and permissions have no effect on approvals."""

    def prepare(driver: DriverProcess) -> None:
        settings = driver.work_dir / ".claude" / "settings.json"
        settings.parent.mkdir()
        settings.write_text(json.dumps({"disableAllHooks": True, "permissions": {"allow": ["Bash"]}}))

    model.script(calls("Bash", command="touch no.txt"), writes("a pity"))
    driver = await claude("work", prepare=prepare, approvals=ASK)
    decide(driver, await driver.received("driver.ask"), granted=False, by_user=False)
    await driver.received("driver.result", error_type=None)
    assert not (driver.work_dir / "no.txt").exists()
    assert [line["outcome"] for line in driver.emitted("agent.tool_result")] == ["denied"]


async def test_subagent_is_reported_and_needs_approvals(claude: StartClaude, model: AnthropicModel) -> None:
    """The start and end of a subagent are events; its tools need approvals like any."""

    def main_or_sub(requested: object) -> Answer:
        words = getattr(requested, "words", "")
        if "task-notification" in words:
            return writes("all done")
        if "LOOK CLOSELY" not in words.partition('"tool_use"')[0]:
            return writes("I wait")
        return writes("seen") if "tool_result" in words else calls("Bash", command="echo peek")

    task = {"description": "look", "prompt": "LOOK CLOSELY", "subagent_type": "general-purpose"}
    model.script(Answer(blocks=(Call("Task", task),)), *[main_or_sub] * 5)
    driver = await claude("work", approvals=ASK)
    requested = await driver.received("driver.ask")
    assert requested["tool"] == "Task"
    decide(driver, requested, granted=True)
    requested = await driver.received("driver.ask", tool="Bash")
    assert requested["input"]["command"] == "echo peek"
    decide(driver, requested, granted=True)
    invoked = await driver.received("agent.subagent_invoked")
    assert (invoked["subagent_type"], invoked["subagent_prompt"]) == ("general-purpose", "LOOK CLOSELY")
    completed = await driver.received("agent.subagent_completed")
    assert completed["tool_use_id"] == invoked["tool_use_id"]
    assert completed["subagent_result"] == "seen"
    assert driver.emitted("agent.tool_use")[0]["event_subtype"] == "subagent"
    subagents = [driver.emitted(kind)[0] for kind in ("agent.tool_use", "agent.tool_completed", "agent.tool_result")]
    subagents.append(await driver.received("agent.message", content="seen"))
    assert {line["parent_tool_use_id"] for line in subagents} == {invoked["tool_use_id"]}
    assert (await driver.received("agent.message", content="all done"))["parent_tool_use_id"] is None
    result = await driver.received("driver.result")
    assert result["final_output"] == "all done"
    assert sum(line["input_tokens"] for line in driver.emitted("agent.usage")) == 100 * len(model.requests)
