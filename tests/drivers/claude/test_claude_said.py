"""What the SDK says, as events: on objects that look like the SDK's, for what a script hardly brings about."""

from dataclasses import dataclass, field
from typing import Any

import pytest

from sandherd_drivers.claude.outcomes import judge
from sandherd_drivers.claude.said import Line, Telling
from sandherd_drivers.claude.tool_results import MOST_SHOWN, printed, result_text


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


def types(lines: list[Line]) -> list[str]:
    return [line[0] for line in lines]


def test_a_message_is_whole_when_the_next_one_begins() -> None:
    """Its blocks come one by one; how many they were is said once, with why it stopped."""
    telling = Telling()
    lines = [
        *telling.assistant(Assistant([TextBlock("a")])),
        *telling.assistant(Assistant([ToolUseBlock("t", "Bash")])),
    ]
    lines += telling.assistant(Assistant([TextBlock("b")], message_id="m2"))
    lines += telling.answered("end_turn")
    whole = [data for kind, data in lines if kind == "agent.assistant_message"]
    assert [(data["block_count"], data["stop_reason"]) for data in whole] == [(2, "tool_use"), (1, "end_turn")]
    assert list(telling.answered()) == []


def test_a_subagent_in_the_background_ends_when_it_ends() -> None:
    """That it was started is no result; it may tell of an end twice, which is said once."""
    telling = Telling(now=iter([1.0, 3.5]).__next__)
    assert types(list(telling.assistant(Assistant([TASK])))) == ["agent.subagent_invoked"]
    launched = list(telling.user(User([LAUNCHED], {"isAsync": True, "status": "async_launched"})))
    assert types(launched) == ["agent.assistant_message"]
    over = Notice("task_notification", {"subtype": "task_notification"}, "t1", "seen", {"total_tokens": 7})
    completed = list(telling.system(over))
    assert types(completed) == ["agent.subagent_completed", "agent.system_message"]
    assert completed[0][1]["subagent_result"] == "seen"
    assert completed[0][1]["subagent_usage"] == {"total_tokens": 7}
    assert completed[0][1]["subagent_duration_ms"] == 2500
    assert types(list(telling.system(over))) == ["agent.system_message"]


def test_a_subagent_that_is_waited_for_ends_with_its_result() -> None:
    """As does a skill; both have a result like any tool."""
    telling = Telling()
    list(telling.assistant(Assistant([TASK, ToolUseBlock("t2", "Skill", {"skill": "greet"})])))
    lines = list(telling.user(User([ToolResultBlock("t1", "seen")], {"status": "completed", "usage": {"a": 1}})))
    lines += telling.user(User([ToolResultBlock("t2", "hello")]))
    assert types(lines)[1:] == [
        *("agent.subagent_completed", "agent.tool_result"),
        *("agent.skill_completed", "agent.tool_result"),
    ]


def test_what_is_said_in_a_subagent_is_not_taken_for_the_users_words() -> None:
    """Nor is a notice that the program writes into the conversation itself."""
    telling = Telling()
    assert list(telling.user(User("look around", parent_tool_use_id="t1"))) == []
    assert list(telling.user(User("<task-notification>", origin={"kind": "task-notification"}))) == []
    thought = Assistant([TextBlock("hm")], parent_tool_use_id="t1")
    assert types(list(telling.assistant(thought))) == ["agent.message"]


def test_a_long_result_is_cut_and_says_so() -> None:
    """Its whole length is told; the tool's whole response is in the other event."""
    telling = Telling()
    list(telling.assistant(Assistant([ToolUseBlock("t", "Read")])))
    long = "x" * (MOST_SHOWN + 1)
    lines = list(telling.user(User([ToolResultBlock("t", long, is_error=None)], {"file": long})))
    result = lines[-1][1]
    assert len(result["result"]) == MOST_SHOWN
    assert (result["result_truncated"], result["result_full_length"]) == (True, MOST_SHOWN + 1)
    assert lines[-2][1]["tool_response"] == {"file": long}


def test_a_result_without_a_call_is_still_a_result() -> None:
    """A session that was resumed has calls from before."""
    lines = list(Telling().user(User([ToolResultBlock("old", "gone", is_error=True)])))
    assert types(lines) == ["agent.tool_result"]


def test_notices_that_come_all_the_time_are_left_out() -> None:
    """And of what comes at each turn's beginning the first is told, in part."""
    telling = Telling()
    init = Notice("init", {"subtype": "init", "model": "claude", "slash_commands": ["clear"]})
    assert list(telling.system(init)) == [
        ("agent.system_message", {"metadata": {"subtype": "init", "model": "claude"}})
    ]
    assert list(telling.system(init)) == []
    assert list(telling.system(Notice("thinking_tokens", {}))) == []
    assert telling.model == "claude"


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
    """Also those that are none."""
    assert result_text(content) == text


def test_only_commands_print() -> None:
    """Standard output, then standard error, each whole lines."""
    assert printed({"stdout": "a\n", "stderr": "b"}) == "a\nb\n"
    assert printed({"stdout": "", "stderr": ""}) == printed("User rejected tool use") == printed(None) == ""


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
def test_an_outcome_says_what_it_is(result: Result, outcome: tuple[str | None, str]) -> None:
    """A success that is an error is an error; what may pass is told from what will not."""
    judged = judge(result)
    assert (judged.error_type, judged.stop_reason) == outcome
    assert judged.interrupted is (outcome[1] == "interrupted")
    assert bool(judged.error) is (judged.error_type is not None)
