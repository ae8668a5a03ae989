"""Options of a task as the real Claude agent and its model receive them."""

import sys
from pathlib import Path
from typing import Any

import pytest

from sandherd.contracts.harnesses import Approvals
from sandherd_drivers.approval_policy import needs_approval
from sandherd_drivers.claude.options import environment, limits, session_options, tool_options
from sandherd_drivers.commands import Begin, Resume
from tests.drivers.claude.conftest import StartClaude, program
from tests.drivers.driver_process import DriverProcess
from tests.models.anthropic import AnthropicModel
from tests.models.anthropic_answers import Answer, Call, calls, writes

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
    """The metadata that the program has reported of itself."""
    notices: list[dict[str, Any]] = [line["metadata"] for line in driver.emitted("agent.system_message")]
    return next(notice for notice in notices if notice["subtype"] == "init")


@pytest.mark.agents
async def test_options_of_task_reach_the_model(claude: StartClaude, model: AnthropicModel) -> None:
    """The model's name, the system prompt with its appendix and only the allowed tools are in the request."""
    model.script(writes("hello"))
    driver = await claude(
        "begin",
        model="claude-haiku-4-5",
        system_prompt="You are a gardener.",
        append_system_prompt="Speak of roses. " + "x" * 140_000,
        allowed_tools=["Read", "Bash(ls *)"],
        subagents=False,
        skills=False,
    )
    await driver.received("driver.result", error_type=None)
    requested = model.requests[0]
    assert requested.body["model"] == "claude-haiku-4-5"
    assert "You are a gardener." in str(requested.body["system"])
    assert "Speak of roses." in str(requested.body["system"])
    assert requested.tools == {"Read", "Bash"}
    assert set(metadata(driver)["tools"]) == {"Read", "Bash"}
    assert "gardener" not in " ".join(program(driver).cmdline())


@pytest.mark.agents
async def test_search_tools_read_the_work_tree(claude: StartClaude, model: AnthropicModel) -> None:
    """Read, Glob and Grep find the file and return it, where the task permits them."""
    model.script(
        calls("Read", file_path="notes.md"),
        calls("Glob", pattern="*.md"),
        calls("Grep", pattern="oka.i", output_mode="content"),
        writes("found"),
    )
    tools = ["Read", "Glob", "Grep"]
    driver = await claude("look", prepare=lay_notes, allowed_tools=tools)
    await driver.received("driver.result", error_type=None)
    assert [line["tool"] for line in driver.emitted("agent.tool_completed")] == tools
    results = driver.emitted("agent.tool_result")
    assert [line["is_error"] for line in results] == [False] * 3
    for result, words in zip(results, ("an okapi", "notes.md", "okapi"), strict=True):
        assert words in result["result"]


@pytest.mark.agents
async def test_sdk_prompt_is_used_unless_replaced(claude: StartClaude, model: AnthropicModel) -> None:
    """An appended prompt follows the SDK's own; the work tree's instructions and skills are part of the request."""
    model.script(
        Answer(blocks=(Call("Skill", {"skill": "greet", "args": "Ada"}),)),
        writes("hello"),
    )
    driver = await claude("begin", prepare=lay_skill, append_system_prompt="Speak of roses.", permission_mode="default")
    await driver.received("driver.result", error_type=None)
    system = str(model.requests[0].body["system"])
    assert system.index("Speak of roses.") > 1000
    assert "okapi" in model.requests[0].words
    assert {"Agent", "Skill", "Bash", "Edit", "Write", "Read"} <= model.requests[0].tools
    assert driver.emitted("agent.skill_invoked")[0]["skill_name"] == "greet"
    assert driver.emitted("agent.skill_completed")[0]["skill_name"] == "greet"
    assert "GOOD MORNING to Ada" in model.requests[1].words


@pytest.mark.agents
async def test_skills_and_subagents_can_be_disabled(claude: StartClaude, model: AnthropicModel) -> None:
    """Disabled skills and subagents are not offered, and a model that calls them anyway gets an error."""
    task = {"description": "look", "prompt": "look", "subagent_type": "general-purpose"}
    model.script(
        Answer(blocks=(Call("Skill", {"skill": "greet"}), Call("Task", task))),
        writes("then not"),
    )
    driver = await claude("begin", prepare=lay_skill, skills=False, subagents=False)
    await driver.received("driver.result", error_type=None)
    assert model.requests[0].tools.isdisjoint({"Agent", "Task", "Skill", "Workflow"})
    assert "Greets people" not in model.requests[0].words
    assert [line["is_error"] for line in driver.emitted("agent.tool_result")] == [True, True]
    assert len(model.requests) == 2


@pytest.mark.agents
@pytest.mark.parametrize("mode", ["default", "bypassPermissions"])
async def test_tool_is_allowed_by_pattern_or_denied(claude: StartClaude, model: AnthropicModel, mode: str) -> None:
    """Calls outside a pattern are denied; a denied tool is not offered."""
    model.script(
        calls("Bash", command="echo fine"),
        calls("Bash", command="touch no.txt"),
        calls("Read", file_path="no.txt"),
        writes("enough"),
    )
    allowed = ["Bash(echo *)", "Read"]
    driver = await claude("begin", allowed_tools=allowed, disallowed_tools=["Read"], permission_mode=mode)
    await driver.received("driver.result", error_type=None)
    assert [line["is_error"] for line in driver.emitted("agent.tool_result")] == [False, True, True]
    assert list(driver.work_dir.iterdir()) == []
    assert "Read" not in model.requests[0].tools


@pytest.mark.agents
@pytest.mark.parametrize("otherwise", ["allow", "ask"])
async def test_plan_mode_executes_nothing(claude: StartClaude, model: AnthropicModel, otherwise: str) -> None:
    """An approval of a tool, by policy or user, does not permit carrying out the plan."""
    model.script(calls("Write", file_path="no.txt", content="1"), writes("I only plan"))
    driver = await claude("begin", permission_mode="plan", approvals={"tools": {}, "otherwise": otherwise})
    if otherwise == "ask":
        requested = await driver.received("driver.ask")
        driver.send("decide", approval_id=requested["approval_id"], granted=True, reason=None)
    await driver.received("driver.result", error_type=None)
    assert not (driver.work_dir / "no.txt").exists()


@pytest.mark.agents
async def test_approved_plan_is_carried_out(claude: StartClaude, model: AnthropicModel) -> None:
    """The approval request has the plan's text."""
    model.script(
        calls("ExitPlanMode", plan="write yes.txt"), calls("Write", file_path="yes.txt", content="1"), writes("done")
    )
    driver = await claude("begin", permission_mode="plan", approvals={"tools": {}, "otherwise": "ask"})
    for count, tool in enumerate(("ExitPlanMode", "Write"), start=1):
        requested = await driver.received("driver.ask", count)
        assert requested["tool"] == tool
        driver.send("decide", approval_id=requested["approval_id"], granted=True, reason=None)
    await driver.received("driver.result", error_type=None)
    assert (driver.work_dir / "yes.txt").exists()


def test_only_a_policy_that_allows_all_needs_no_approval() -> None:
    """One tool that is not allowed is enough."""
    policies = [
        (Approvals(), False),
        (Approvals(otherwise="ask"), True),
        (Approvals(tools={"Bash": "deny"}), True),
        (Approvals(tools={"B": "allow"}), False),
        (Approvals(tools={"B": "allow"}, otherwise="deny"), True),
    ]
    for policy, expected in policies:
        assert needs_approval({"approvals": policy.model_dump()}) is expected, policy
    assert not needs_approval({})


def test_retry_settings_of_environment_are_used() -> None:
    """A setting of retries in the environment wins; the driver's own variables win over all others."""
    given = {"CLAUDE_CODE_MAX_RETRIES": "2", "CLAUDE_CONFIG_DIR": "/elsewhere"}
    made = environment(given, Path("/own"))
    assert (made["CLAUDE_CODE_MAX_RETRIES"], made["CLAUDE_CONFIG_DIR"]) == ("2", "/own")
    assert environment({}, Path("/own"))["CLAUDE_CODE_MAX_RETRIES"].isdigit()


def test_budget_is_per_attempt() -> None:
    """The session's earlier cost is added to the budget, because the program's total includes it."""
    assert limits({"max_budget_micro_usd": 500_000}, 1.25) == {"max_turns": None, "max_budget_usd": 1.75}
    assert limits({}, 1.25)["max_budget_usd"] is None


def test_new_session_has_id_of_driver() -> None:
    """A new or forked session has an id chosen by the driver; a resumed one has its old id."""
    assert session_options(Begin("t", "/w", "/s"), "new") == {"session_id": "new"}
    goes_on = Begin("t", "/w", "/s", resume=Resume("old", "/t"))
    assert session_options(goes_on, "new") == {"resume": "old"}
    forked = Begin("t", "/w", "/s", resume=Resume("old", "/t", fork=True))
    assert session_options(forked, "new") == {"resume": "old", "fork_session": True, "session_id": "new"}


def test_terminal_question_tool_is_disallowed() -> None:
    """`AskUserQuestion` is disallowed; tools of MCP servers are not passed on as the program's own."""
    assert "AskUserQuestion" in tool_options({})["disallowed_tools"]
    assert tool_options({"allowed_tools": ["mcp__herd__ask_human", "Read"]})["tools"] == ["Read"]


@pytest.mark.agents
async def test_mcp_tools_are_offered_and_need_approval(claude: StartClaude, model: AnthropicModel) -> None:
    """Tools of MCP servers are in the first request, and approvals name them in full."""
    server = {"type": "stdio", "command": sys.executable, "args": [str(Path(__file__).with_name("mcp_server.py"))]}
    tool = "mcp__herd__ask_human"
    model.script(calls(tool, question="tabs?"), writes("so be it"))
    driver = await claude("begin", mcp_servers={"herd": server}, approvals={"tools": {tool: "ask"}})
    requested = await driver.received("driver.ask")
    assert (requested["tool"], requested["input"]) == (tool, {"question": "tabs?"})
    driver.send("decide", approval_id=requested["approval_id"], granted=True, reason=None)
    await driver.received("driver.result", error_type=None)
    assert driver.emitted("agent.tool_result")[0]["result"] == "yes to tabs?"
    assert tool in str(model.requests[0].body)
