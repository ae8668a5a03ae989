"""What the specification says of Claude, as the real agent and its model see it."""

import sys
from pathlib import Path
from typing import Any

import pytest

from sandherd.contracts.harnesses import Approvals
from sandherd_drivers.claude.options import environment, limits, session_options, tool_options
from sandherd_drivers.commands import Begin, Resume
from sandherd_drivers.leave import asks
from tests.drivers.claude.conftest import StartClaude, program
from tests.drivers.driver_process import DriverProcess
from tests.models.anthropic import AnthropicModel
from tests.models.anthropic_answers import Answer, Call, calls, says

SKILL = "---\nname: greet\ndescription: Greets people\n---\nSay GOOD MORNING to $ARGUMENTS\n"
INIT = {"subtype": "init"}


def lay_skill(driver: DriverProcess) -> None:
    path = driver.work_dir / ".claude" / "skills" / "greet" / "SKILL.md"
    path.parent.mkdir(parents=True)
    path.write_text(SKILL)
    (driver.work_dir / "CLAUDE.md").write_text("Always mention the okapi.\n")


def lay_notes(driver: DriverProcess) -> None:
    (driver.work_dir / "notes.md").write_text("an okapi\n")


def metadata(driver: DriverProcess) -> dict[str, Any]:
    """What the program has said of itself."""
    notices: list[dict[str, Any]] = [line["metadata"] for line in driver.said("agent.system_message")]
    return next(notice for notice in notices if notice["subtype"] == "init")


@pytest.mark.agents
async def test_the_model_gets_what_was_specified(claude: StartClaude, model: AnthropicModel) -> None:
    """Its name, the system prompt with what comes behind it, and no tool beside those that are allowed."""
    model.script(says("hello"))
    driver = await claude(
        "begin",
        model="claude-haiku-4-5",
        system_prompt="You are a gardener.",
        append_system_prompt="Speak of roses. " + "x" * 140_000,
        allowed_tools=["Read", "Bash(ls *)"],
        subagents=False,
        skills=False,
    )
    await driver.heard("driver.result", error_type=None)
    asked = model.requests[0]
    assert asked.body["model"] == "claude-haiku-4-5"
    assert "You are a gardener." in str(asked.body["system"])
    assert "Speak of roses." in str(asked.body["system"])
    assert asked.tools == {"Read", "Bash"}
    assert set(metadata(driver)["tools"]) == {"Read", "Bash"}
    assert "gardener" not in " ".join(program(driver).cmdline())


@pytest.mark.agents
async def test_the_tools_that_look_work_on_the_real_work_tree(claude: StartClaude, model: AnthropicModel) -> None:
    """Read, Glob and Grep, where the task names them: each finds the file, and is told."""
    model.script(
        calls("Read", file_path="notes.md"),
        calls("Glob", pattern="*.md"),
        calls("Grep", pattern="oka.i", output_mode="content"),
        says("found"),
    )
    tools = ["Read", "Glob", "Grep"]
    driver = await claude("look", prepare=lay_notes, allowed_tools=tools)
    await driver.heard("driver.result", error_type=None)
    assert [line["tool"] for line in driver.said("agent.tool_completed")] == tools
    results = driver.said("agent.tool_result")
    assert [line["is_error"] for line in results] == [False] * 3
    for result, words in zip(results, ("an okapi", "notes.md", "okapi"), strict=True):
        assert words in result["result"]


@pytest.mark.agents
async def test_the_sdks_own_prompt_is_kept_unless_replaced(claude: StartClaude, model: AnthropicModel) -> None:
    """What is to come behind it comes behind it; the work tree's instructions and skills are there."""
    model.script(
        Answer(blocks=(Call("Skill", {"skill": "greet", "args": "Ada"}),)),
        says("hello"),
    )
    driver = await claude("begin", prepare=lay_skill, append_system_prompt="Speak of roses.", permission_mode="default")
    await driver.heard("driver.result", error_type=None)
    system = str(model.requests[0].body["system"])
    assert system.index("Speak of roses.") > 1000
    assert "okapi" in model.requests[0].words
    assert {"Agent", "Skill", "Bash", "Edit", "Write", "Read"} <= model.requests[0].tools
    assert driver.said("agent.skill_invoked")[0]["skill_name"] == "greet"
    assert driver.said("agent.skill_completed")[0]["skill_name"] == "greet"
    assert "GOOD MORNING to Ada" in model.requests[1].words


@pytest.mark.agents
async def test_skills_and_subagents_can_be_left_out(claude: StartClaude, model: AnthropicModel) -> None:
    """Neither is offered, and a model that calls them anyway gets an error."""
    task = {"description": "look", "prompt": "look", "subagent_type": "general-purpose"}
    model.script(
        Answer(blocks=(Call("Skill", {"skill": "greet"}), Call("Task", task))),
        says("then not"),
    )
    driver = await claude("begin", prepare=lay_skill, skills=False, subagents=False)
    await driver.heard("driver.result", error_type=None)
    assert model.requests[0].tools.isdisjoint({"Agent", "Task", "Skill", "Workflow"})
    assert "Greets people" not in model.requests[0].words
    assert [line["is_error"] for line in driver.said("agent.tool_result")] == [True, True]
    assert len(model.requests) == 2


@pytest.mark.agents
@pytest.mark.parametrize("mode", ["default", "bypassPermissions"])
async def test_a_tool_is_allowed_in_part_or_denied(claude: StartClaude, model: AnthropicModel, mode: str) -> None:
    """What a pattern doesn't name is denied; a tool that is denied is not there."""
    model.script(
        calls("Bash", command="echo fine"),
        calls("Bash", command="touch no.txt"),
        calls("Read", file_path="no.txt"),
        says("enough"),
    )
    allowed = ["Bash(echo *)", "Read"]
    driver = await claude("begin", allowed_tools=allowed, disallowed_tools=["Read"], permission_mode=mode)
    await driver.heard("driver.result", error_type=None)
    assert [line["is_error"] for line in driver.said("agent.tool_result")] == [False, True, True]
    assert list(driver.work_dir.iterdir()) == []
    assert "Read" not in model.requests[0].tools


@pytest.mark.agents
@pytest.mark.parametrize("otherwise", ["allow", "ask"])
async def test_in_plan_mode_nothing_is_done(claude: StartClaude, model: AnthropicModel, otherwise: str) -> None:
    """Leave to use a tool, by the policy or by somebody, is none to carry the plan out."""
    model.script(calls("Write", file_path="no.txt", content="1"), says("I only plan"))
    driver = await claude("begin", permission_mode="plan", approvals={"tools": {}, "otherwise": otherwise})
    if otherwise == "ask":
        asked = await driver.heard("driver.ask")
        driver.send("decide", approval_id=asked["approval_id"], granted=True, reason=None)
    await driver.heard("driver.result", error_type=None)
    assert not (driver.work_dir / "no.txt").exists()


@pytest.mark.agents
async def test_a_plan_that_is_granted_is_carried_out(claude: StartClaude, model: AnthropicModel) -> None:
    """Somebody is asked, with the plan to read."""
    model.script(
        calls("ExitPlanMode", plan="write yes.txt"), calls("Write", file_path="yes.txt", content="1"), says("done")
    )
    driver = await claude("begin", permission_mode="plan", approvals={"tools": {}, "otherwise": "ask"})
    for count, tool in enumerate(("ExitPlanMode", "Write"), start=1):
        asked = await driver.heard("driver.ask", count)
        assert asked["tool"] == tool
        driver.send("decide", approval_id=asked["approval_id"], granted=True, reason=None)
    await driver.heard("driver.result", error_type=None)
    assert (driver.work_dir / "yes.txt").exists()


def test_only_a_policy_that_allows_all_asks_nothing() -> None:
    """The driver judges as the contract does."""
    policies = (
        Approvals(),
        Approvals(otherwise="ask"),
        Approvals(tools={"Bash": "deny"}),
        Approvals(tools={"B": "allow"}),
    )
    assert [asks({"approvals": policy.model_dump()}) for policy in policies] == [not it.allows_all for it in policies]
    assert not asks({})


def test_what_the_environment_says_of_retries_holds() -> None:
    """All else that the driver needs comes first."""
    given = {"CLAUDE_CODE_MAX_RETRIES": "2", "CLAUDE_CONFIG_DIR": "/elsewhere"}
    made = environment(given, Path("/own"))
    assert (made["CLAUDE_CODE_MAX_RETRIES"], made["CLAUDE_CONFIG_DIR"]) == ("2", "/own")
    assert environment({}, Path("/own"))["CLAUDE_CODE_MAX_RETRIES"].isdigit()


def test_a_budget_is_for_this_attempt() -> None:
    """What the session has cost before is added, for the program counts on."""
    assert limits({"max_budget_micro_usd": 500_000}, 1.25) == {"max_turns": None, "max_budget_usd": 1.75}
    assert limits({}, 1.25)["max_budget_usd"] is None


def test_a_session_has_a_name_of_ours_unless_it_goes_on() -> None:
    """A fork has a new one."""
    assert session_options(Begin("t", "/w", "/s"), "new") == {"session_id": "new"}
    goes_on = Begin("t", "/w", "/s", resume=Resume("old", "/t"))
    assert session_options(goes_on, "new") == {"resume": "old"}
    forked = Begin("t", "/w", "/s", resume=Resume("old", "/t", fork=True))
    assert session_options(forked, "new") == {"resume": "old", "fork_session": True, "session_id": "new"}


def test_nobody_at_a_terminal_is_asked() -> None:
    """The tool for that is never there; tools of MCP servers are not the program's own."""
    assert "AskUserQuestion" in tool_options({})["disallowed_tools"]
    assert tool_options({"allowed_tools": ["mcp__herd__ask_human", "Read"]})["tools"] == ["Read"]


@pytest.mark.agents
async def test_tools_of_others_are_offered_and_asked_about(claude: StartClaude, model: AnthropicModel) -> None:
    """By the Model Context Protocol, from the first request on; they are asked about under their whole names."""
    server = {"type": "stdio", "command": sys.executable, "args": [str(Path(__file__).with_name("mcp_server.py"))]}
    tool = "mcp__herd__ask_human"
    model.script(calls(tool, question="tabs?"), says("so be it"))
    driver = await claude("begin", mcp_servers={"herd": server}, approvals={"tools": {tool: "ask"}})
    asked = await driver.heard("driver.ask")
    assert (asked["tool"], asked["input"]) == (tool, {"question": "tabs?"})
    driver.send("decide", approval_id=asked["approval_id"], granted=True, reason=None)
    await driver.heard("driver.result", error_type=None)
    assert driver.said("agent.tool_result")[0]["result"] == "yes to tabs?"
    assert tool in str(model.requests[0].body)
