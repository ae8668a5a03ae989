"""Messages of the Claude SDK become events, by similar objects, for cases that a script can't cause."""

from dataclasses import dataclass, field
from typing import Any

import pytest

from sandherd_drivers.claude.event_mapper import ClaudeEventMapper, EventLine
from sandherd_drivers.claude.outcomes import outcome_of_result
from sandherd_drivers.claude.tool_results import MAX_RESULT_LENGTH, call_result, result_text, terminal_output


@dataclass
class TextBlock:
    text: str


@dataclass
class ToolUseBlock:
    id: str
    name: str
    input: dict[str, Any] = field(default_factory=dict)


@dataclass
class ToolResultBlock:
    tool_use_id: str
    content: Any = ""
    is_error: bool | None = None


@dataclass
class Assistant:
    content: list[Any]
    message_id: str = "m1"
    model: str = "claude"
    parent_tool_use_id: str | None = None
    error: str | None = None
    uuid: str | None = "u1"


@dataclass
class User:
    content: Any
    tool_use_result: Any = None
    parent_tool_use_id: str | None = None
    origin: Any = None


@dataclass
class Notice:
    subtype: str
    data: dict[str, Any]
    tool_use_id: str | None = None
    summary: str = ""
    usage: Any = None


@dataclass
class Result:
    subtype: str = "success"
    is_error: bool = False
    terminal_reason: str | None = "completed"
    stop_reason: str | None = "end_turn"
    api_error_status: int | None = None
    errors: list[str] | None = None
    result: str | None = None


TASK = ToolUseBlock("t1", "Agent", {"description": "look", "prompt": "look around"})
LAUNCHED = ToolResultBlock("t1", [{"type": "text", "text": "Async agent launched"}])


def types(lines: list[EventLine]) -> list[str]:
    return [line[0] for line in lines]


def test_message_is_complete_when_the_next_one_begins() -> None:
    """Blocks come one by one; their number and the stop reason are published once."""
    mapper = ClaudeEventMapper()
    lines = [
        *mapper.assistant_events(Assistant([TextBlock("a")])),
        *mapper.assistant_events(Assistant([ToolUseBlock("t", "Bash")])),
    ]
    lines += mapper.assistant_events(Assistant([TextBlock("b")], message_id="m2"))
    lines += mapper.end_response("end_turn")
    whole = [data for kind, data in lines if kind == "agent.assistant_message"]
    assert [(data["block_count"], data["stop_reason"]) for data in whole] == [(2, "tool_use"), (1, "end_turn")]
    assert list(mapper.end_response()) == []


def test_background_subagent_ends_at_its_end() -> None:
    """The report of its start is no result; a repeated end is published once."""
    mapper = ClaudeEventMapper(now=iter([1.0, 3.5]).__next__)
    assert types(list(mapper.assistant_events(Assistant([TASK])))) == ["agent.subagent_invoked"]
    launched = list(mapper.user_events(User([LAUNCHED], {"isAsync": True, "status": "async_launched"})))
    assert types(launched) == ["agent.assistant_message"]
    over = Notice("task_notification", {"subtype": "task_notification"}, "t1", "seen", {"total_tokens": 7})
    completed = list(mapper.system_events(over))
    assert types(completed) == ["agent.subagent_completed", "agent.system_message"]
    assert completed[0][1]["subagent_result"] == "seen"
    assert completed[0][1]["subagent_usage"] == {"total_tokens": 7}
    assert completed[0][1]["subagent_duration_ms"] == 2500
    assert types(list(mapper.system_events(over))) == ["agent.system_message"]


def test_awaited_subagent_ends_with_its_result() -> None:
    """A skill ends with its result, too; both have a result like any tool."""
    mapper = ClaudeEventMapper()
    list(mapper.assistant_events(Assistant([TASK, ToolUseBlock("t2", "Skill", {"skill": "greet"})])))
    lines = list(mapper.user_events(User([ToolResultBlock("t1", "seen")], {"status": "completed", "usage": {"a": 1}})))
    lines += mapper.user_events(User([ToolResultBlock("t2", "hello")]))
    assert types(lines)[1:] == [
        *("agent.subagent_completed", "agent.tool_result"),
        *("agent.skill_completed", "agent.tool_result"),
    ]


def test_message_within_a_subagent_is_not_the_users() -> None:
    """A notice that the program writes into the conversation is not the user's either."""
    mapper = ClaudeEventMapper()
    assert list(mapper.user_events(User("look around", parent_tool_use_id="t1"))) == []
    assert list(mapper.user_events(User("<task-notification>", origin={"kind": "task-notification"}))) == []
    thought = Assistant([TextBlock("hm")], parent_tool_use_id="t1")
    assert types(list(mapper.assistant_events(thought))) == ["agent.message"]


def test_calls_of_parallel_subagents_are_distinguished() -> None:
    """Calls, results and responses that interleave have the call of their sub-agent; the agent's own have none."""
    mapper = ClaudeEventMapper()
    parents: list[str | None] = ["t1", "t2", None]
    lines: list[EventLine] = []
    for parent in parents:
        call = Assistant([ToolUseBlock(f"of-{parent}", "Bash")], message_id=f"m-{parent}", parent_tool_use_id=parent)
        lines += mapper.assistant_events(call)
    for parent in reversed(parents):
        lines += mapper.user_events(User([ToolResultBlock(f"of-{parent}", "x")], parent_tool_use_id=parent))
    for kind in ("agent.tool_use", "agent.tool_result", "agent.tool_completed"):
        found = {data["tool_use_id"]: data["parent_tool_use_id"] for name, data in lines if name == kind}
        assert found == {f"of-{parent}": parent for parent in parents}, kind
    responses = [data["parent_tool_use_id"] for name, data in lines if name == "agent.assistant_message"]
    assert responses == parents


def test_long_result_is_truncated_with_its_length() -> None:
    """The full length is in the event; the tool's whole response is in the other one."""
    mapper = ClaudeEventMapper()
    list(mapper.assistant_events(Assistant([ToolUseBlock("t", "Read")])))
    long = "x" * (MAX_RESULT_LENGTH + 1)
    lines = list(mapper.user_events(User([ToolResultBlock("t", long, is_error=None)], {"file": long})))
    result = lines[-1][1]
    assert len(result["result"]) == MAX_RESULT_LENGTH
    assert (result["result_truncated"], result["result_full_length"]) == (True, MAX_RESULT_LENGTH + 1)
    assert lines[-2][1]["tool_response"] == {"file": long}


def test_result_without_a_call_is_still_a_result() -> None:
    """A resumed session has results of earlier calls."""
    lines = list(ClaudeEventMapper().user_events(User([ToolResultBlock("old", "gone", is_error=True)])))
    assert types(lines) == ["agent.tool_result"]


@pytest.mark.parametrize(
    ("metadata", "fields"),
    [
        ({"trigger": "auto", "pre_tokens": 9, "post_tokens": 2}, ("automatic", 9, 2)),
        ({"trigger": "manual", "pre_tokens": 9}, ("requested", 9, None)),
        ({"trigger": "other", "pre_tokens": -1, "post_tokens": "2"}, (None, None, None)),
        (None, (None, None, None)),
    ],
)
def test_compaction_is_published_with_valid_figures(metadata: Any, fields: tuple[Any, ...]) -> None:
    """A report in another form is left out; the summary that follows is no user's message, once."""
    mapper = ClaudeEventMapper()
    notice = Notice("compact_boundary", {"subtype": "compact_boundary", "compact_metadata": metadata})
    (kind, data), _notice = mapper.system_events(notice)
    assert (kind, tuple(data.values())) == ("agent.context_compacted", fields)
    lines = [line for text in ("summary", "hello") for line in mapper.user_events(User(text))]
    assert types(lines) == ["agent.system_message", "agent.user_message"]


def test_frequent_notices_are_left_out() -> None:
    """Of the notices at the begin of each turn only the first is published, in part."""
    mapper = ClaudeEventMapper()
    init = Notice("init", {"subtype": "init", "model": "claude", "slash_commands": ["clear"]})
    assert list(mapper.system_events(init)) == [
        ("agent.system_message", {"metadata": {"subtype": "init", "model": "claude"}})
    ]
    assert list(mapper.system_events(init)) == []
    assert list(mapper.system_events(Notice("thinking_tokens", {}))) == []
    assert mapper.model == "claude"


@pytest.mark.parametrize(
    ("tool", "text", "response", "is_error", "outcome"),
    [
        ("Bash", "1", {"stdout": "1"}, False, ("ok", 0)),
        ("Bash", "", {"stdout": "", "returnCodeInterpretation": "No matches found"}, False, ("ok", None)),
        ("Bash", "started", {"stdout": "", "backgroundTaskId": "b1"}, False, ("ok", None)),
        ("Bash", "moved", {"stdout": "", "backgroundTaskId": "b1", "timedOutAfterMs": 9}, False, ("timed_out", None)),
        ("Bash", "half", {"stdout": "half", "interrupted": True}, False, ("cancelled", None)),
        ("Bash", "Exit code 137\nout", "Error: Exit code 137\nout", True, ("failed", 137)),
        ("Bash", "out\nExit code 3", "Error: out", True, ("failed", None)),
        ("Bash", "Exit code 99999999999", None, True, ("failed", None)),
        ("Bash", "Exit code 143\nCommand timed out after 2m 0s", "Error", True, ("timed_out", None)),
        ("mcp__a__b", "Exit code 3", "Error: Exit code 3", True, ("failed", None)),
        ("Bash", "The user doesn't want", "User rejected tool use", True, ("cancelled", None)),
        (None, "lost", None, True, ("failed", None)),
    ],
)
def test_outcome_is_what_the_program_reports(
    tool: str | None, text: str, response: Any, is_error: bool, outcome: tuple[str, int | None]
) -> None:
    """Its fields count before its text, which counts only where it is the program's own; then it is an error."""
    result = call_result(tool, text, response, is_error=is_error)
    assert (result.outcome, result.exit_code) == outcome


def test_denied_call_has_the_outcome_of_its_denial() -> None:
    """The driver's decision counts, or else the program's notice; neither does for a call that was executed."""
    mapper = ClaudeEventMapper(denials={"t1": "refused", "t3": "denied"})
    denied = ToolResultBlock("t1", "no", is_error=True), ToolResultBlock("t2", "no", is_error=True)
    list(mapper.system_events(Notice("permission_denied", {"subtype": "permission_denied", "tool_use_id": "t1"})))
    list(mapper.system_events(Notice("permission_denied", {"subtype": "permission_denied", "tool_use_id": "t2"})))
    lines = list(mapper.user_events(User([*denied, ToolResultBlock("t3", "done")])))
    assert [data["outcome"] for _, data in lines] == ["refused", "denied", "ok"]
    assert mapper.denials == {}


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (None, ""),
        ("plain", "plain"),
        ([{"type": "text", "text": "a"}, {"type": "image", "source": {}}], "a\n[image]"),
        ({"odd": 1}, '{"odd": 1}'),
    ],
)
def test_every_result_has_a_text(content: Any, text: str) -> None:
    """Empty and missing results have a text, too."""
    assert result_text(content) == text


def test_only_commands_have_terminal_output() -> None:
    """Standard output comes first, then standard error, each in whole lines."""
    assert terminal_output({"stdout": "a\n", "stderr": "b"}) == "a\nb\n"
    assert (
        terminal_output({"stdout": "", "stderr": ""})
        == terminal_output("User rejected tool use")
        == terminal_output(None)
        == ""
    )


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({}, "ANTHROPIC_API_KEY is not set; add --secret-env ANTHROPIC_API_KEY"),
        ({"ANTHROPIC_API_KEY": ""}, "ANTHROPIC_API_KEY is not set"),
        ({"CLAUDE_CODE_OAUTH_TOKEN": "x"}, "does not accept CLAUDE_CODE_OAUTH_TOKEN"),
    ],
)
def test_missing_key_is_permanent_and_named(environ: dict[str, str], message: str) -> None:
    """The agent has sent no request, so there is no status: another attempt would lack the key, too."""
    result = Result("success", True, "api_error", result="Not logged in · Please run /login")
    outcome = outcome_of_result(result, environ)
    assert outcome.error_type == "model_refused"
    assert message in outcome.error


@pytest.mark.parametrize(
    ("result", "outcome"),
    [
        (Result(result="done"), (None, "end_turn")),
        (Result("error_max_turns", True, "max_turns"), ("exit_status", "max_turns")),
        (Result("error_max_budget_usd", True, "budget_exhausted"), ("exit_status", "max_budget")),
        (Result("success", True, "api_error", api_error_status=401), ("model_refused", "api_error")),
        (Result("success", True, "api_error", api_error_status=429), ("model_unavailable", "api_error")),
        (Result("success", True, "api_error", api_error_status=503), ("model_unavailable", "api_error")),
        (Result("success", True, "api_error"), ("model_unavailable", "api_error")),
        (Result("success", True, "prompt_too_long", api_error_status=400), ("exit_status", "prompt_too_long")),
        (Result("error_during_execution", True, None), ("exit_status", "error_during_execution")),
        (Result("error_during_execution", True, "aborted_tools"), (None, "interrupted")),
    ],
)
def test_outcome_has_its_error_type(result: Result, outcome: tuple[str | None, str]) -> None:
    """A success with an error is an error; temporary errors are distinguished from permanent ones."""
    actual = outcome_of_result(result)
    assert (actual.error_type, actual.stop_reason) == outcome
    assert actual.interrupted is (outcome[1] == "interrupted")
    assert bool(actual.error) is (actual.error_type is not None)
