"""Session updates of the protocol become events, without an agent."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from sandherd_drivers.acp.session_updates import SessionCosts, SessionUpdates
from sandherd_drivers.line_encoder import encode_line
from tests.events_pipe import published

Events = list[tuple[str, dict[str, Any]]]


@pytest.fixture
def updates() -> SessionUpdates:
    times = iter(range(1000))
    return SessionUpdates(clock=lambda: float(next(times)))


def chunk(text: str, kind: str = "agent_message_chunk", **more: Any) -> dict[str, Any]:
    return {"sessionUpdate": kind, "content": {"type": "text", "text": text}, **more}


def tool(id: str, **fields: Any) -> dict[str, Any]:
    return {"sessionUpdate": "tool_call", "toolCallId": id, "title": f"Call {id}", "kind": "execute", **fields}


def progress(id: str, **fields: Any) -> dict[str, Any]:
    return {"sessionUpdate": "tool_call_update", "toolCallId": id, **fields}


def mapped(updates: SessionUpdates, *mapped: dict[str, Any], stop: str = "end_turn", usage: Any = None) -> Events:
    """The events of a turn with these updates."""

    def whole() -> Iterator[tuple[str, dict[str, Any]]]:
        yield from updates.begin_turn()
        for update in mapped:
            yield from updates.events_for(update)
        yield from updates.end_turn(stop, usage)

    events = list(whole())
    lines = b"".join(encode_line(event, fields) for event, fields in events)
    assert [event.type for event in asyncio.run(published(lines))] == [event for event, _ in events]
    return events


def named(events: Events, event: str) -> list[dict[str, Any]]:
    return [fields for name, fields in events if name == event]


def test_chunks_are_joined_to_one_message(updates: SessionUpdates) -> None:
    """The chunks of a text are published as one message; another kind of text or a tool call ends it."""
    events = mapped(
        updates, chunk("Let "), chunk("me "), chunk("hm", "agent_thought_chunk"), chunk("see"), tool("1"), chunk("!")
    )
    texts = [fields["content"] for name, fields in events if name in {"agent.message", "agent.thinking"}]
    assert texts == ["Let me ", "hm", "see", "!"]
    assert [name for name, _ in events][:4] == ["agent.message", "agent.thinking", "agent.message", "agent.tool_use"]


def test_message_id_separates_messages(updates: SessionUpdates) -> None:
    """Two messages in a row are two if the agent names them."""
    events = mapped(updates, chunk("a", messageId="1"), chunk("b", messageId="1"), chunk("c", messageId="2"))
    assert [fields["content"] for fields in named(events, "agent.message")] == ["ab", "c"]
    assert updates.last_message == "c"


def test_usage_and_tool_progress_do_not_split_a_text(updates: SessionUpdates) -> None:
    """Chunks before and after a usage update or a tool's progress are one message."""
    usage = {"sessionUpdate": "usage_update", "used": 1, "size": 2}
    events = mapped(updates, tool("1"), chunk("a"), usage, progress("1", content=[]), chunk("b"))
    assert [fields["content"] for fields in named(events, "agent.message")] == ["ab"]


def test_endless_text_is_published_in_parts(updates: SessionUpdates) -> None:
    """Each part of a text without an end fits a line, and no character is lost."""
    events = mapped(updates, *(chunk("x" * 150_000) for _ in range(10)), chunk("y" * 700_000))
    contents = [fields["content"] for fields in named(events, "agent.message")]
    assert max(map(len, contents)) <= 300_000
    assert sum(map(len, contents)) == 10 * 150_000 + 700_000


@pytest.mark.parametrize(
    ("block", "text"),
    [
        ({"type": "image", "data": "AAAA", "mimeType": "image/png"}, "[image, image/png, 4 characters]"),
        ({"type": "resource_link", "uri": "file:///a", "name": "a"}, "[file:///a]"),
        ({"type": "resource", "resource": {"uri": "file:///a", "text": "content"}}, "content"),
        ({"type": "resource", "resource": {"uri": "file:///a", "blob": "AAAA"}}, "[file:///a]"),
    ],
)
def test_content_other_than_text_is_described(updates: SessionUpdates, block: dict[str, Any], text: str) -> None:
    """An image or another block in a message is published as a text that describes it."""
    events = mapped(updates, {"sessionUpdate": "agent_message_chunk", "content": block})
    assert named(events, "agent.message")[0]["content"] == text


def test_tool_call_has_start_and_end(updates: SessionUpdates) -> None:
    """The call starts at its first update, and ends with its result and its duration."""
    begun = tool("1", rawInput={"command": "ls"})
    running = progress("1", status="in_progress")
    content = [{"type": "content", "content": {"type": "text", "text": "a.py"}}, {"type": "diff", "path": "/w/a.py"}]
    events = mapped(updates, begun, running, progress("1", status="completed", content=content, rawOutput={"code": 0}))
    assert [name for name, _ in events][:3] == ["agent.tool_use", "agent.tool_completed", "agent.tool_result"]
    call = {"tool": "execute", "tool_use_id": "1", "input": {"command": "ls"}, "parent_tool_use_id": None}
    assert named(events, "agent.tool_use") == [call]
    completed = named(events, "agent.tool_completed")[0]
    assert completed["tool_response"] == {"code": 0}
    assert completed["duration_ms"] > 0
    assert named(events, "agent.tool_result")[0] == {
        "tool_use_id": "1", "result": "a.py\nchanged /w/a.py", "result_truncated": False, "result_full_length": 20,
        "is_error": False, "outcome": "ok", "exit_code": None, "parent_tool_use_id": None,
    }  # fmt: skip


def test_failed_tool_is_an_error(updates: SessionUpdates) -> None:
    """The end of its call is marked as an error."""
    events = mapped(updates, tool("1"), progress("1", status="failed", rawOutput="no such file"))
    result = named(events, "agent.tool_result")[0]
    assert (result["is_error"], result["result"]) == (True, "no such file")


@pytest.mark.parametrize(
    ("end", "outcome"),
    [
        ({"status": "completed"}, ("ok", None)),
        ({"status": "completed", "rawOutput": {"exit_code": 0}}, ("ok", 0)),
        ({"status": "completed", "rawOutput": {"exitCode": 3}}, ("failed", 3)),
        ({"status": "failed", "_meta": {"terminal_exit": {"exit_code": 4}}}, ("failed", 4)),
        ({"status": "failed", "rawOutput": {"exit_code": "no", "exitCode": True}}, ("failed", None)),
        ({"status": "failed", "rawOutput": "exit_code: 3"}, ("failed", None)),
        ({"status": "in_progress"}, ("cancelled", None)),
    ],
)
def test_outcome_is_status_and_exit_status(
    updates: SessionUpdates, end: dict[str, Any], outcome: tuple[str, int | None]
) -> None:
    """Many agents complete a call whatever its command's exit status is; a call without an end ends with its turn."""
    events = mapped(updates, tool("1"), progress("1", **end))
    ends = [fields for name, fields in events if name in {"agent.tool_completed", "agent.tool_result"}]
    assert {(fields["outcome"], fields["exit_code"]) for fields in ends} == {outcome}


def test_long_result_is_truncated(updates: SessionUpdates) -> None:
    """The limit is 5,000 characters, and the event has the full length."""
    result = named(mapped(updates, tool("1", status="completed", rawOutput="x" * 9000)), "agent.tool_result")[0]
    assert (len(result["result"]), result["result_truncated"], result["result_full_length"]) == (5000, True, 9000)


def test_unfinished_tool_ends_with_its_turn(updates: SessionUpdates) -> None:
    """No call stays open, and updates in the next turn open none."""
    events = mapped(updates, tool("1"), tool("2", status="in_progress"), stop="cancelled")
    ends = [(fields["tool_use_id"], fields["is_error"]) for fields in named(events, "agent.tool_result")]
    assert ends == [("1", True), ("2", True)]
    assert named(events, "agent.tool_completed") == []
    assert named(mapped(updates, progress("1", status="completed")), "agent.tool_use") == []


def test_incomplete_input_is_waited_for(updates: SessionUpdates) -> None:
    """A call with an empty input starts with its whole input, or when it begins to run."""
    events = mapped(updates, tool("1", rawInput={}, status="pending"), progress("1", rawInput={"command": "ls"}))
    assert named(events, "agent.tool_use")[0]["input"] == {"command": "ls"}
    events = mapped(updates, tool("2", rawInput={}, status="pending"), progress("2", status="in_progress"))
    assert named(events, "agent.tool_use")[0]["input"] == {"title": "Call 2"}


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"kind": "edit"}, "edit"),
        ({"kind": "edit", "_meta": {"claudeCode": {"toolName": "Write"}}}, "Write"),
        ({"kind": "other"}, "Call 1"),
        ({"kind": "other", "title": ""}, "other"),
        ({"kind": None, "title": "x" * 9000}, "x" * 200),
    ],
)
def test_tool_name_is_the_agents_then_the_kind_then_the_title(
    updates: SessionUpdates, fields: dict[str, Any], name: str
) -> None:
    """The first of these that the agent sends is used."""
    assert named(mapped(updates, tool("1", **fields)), "agent.tool_use")[0]["tool"] == name


def test_tool_call_without_input_shows_title_and_paths(updates: SessionUpdates) -> None:
    """The title and the locations are published as the input if the agent sends none."""
    events = mapped(updates, tool("1", locations=[{"path": "/w/a"}, {"path": "/w/b", "line": 3}]))
    assert named(events, "agent.tool_use")[0]["input"] == {"title": "Call 1", "paths": ["/w/a", "/w/b"]}


def test_subagents_are_distinguished(updates: SessionUpdates) -> None:
    """Calls and texts have the call of their sub-agent where the agent reports it; its texts are not the agent's."""

    def of(parent: Any) -> dict[str, Any]:
        return {"_meta": {"claudeCode": {"parentToolUseId": parent}}}

    texts = [chunk("I ask."), chunk("I look.", **of("t1")), chunk("Me too.", **of("t2")), chunk("x", **of(5))]
    events = mapped(updates, *texts, tool("1", **of("t1")), progress("1", status="completed"), tool("2"))
    assert [(fields["content"], fields["parent_tool_use_id"]) for fields in named(events, "agent.message")] == [
        *(("I ask.", None), ("I look.", "t1"), ("Me too.", "t2"), ("x", None))
    ]
    ends = [
        *named(events, "agent.tool_use"),
        *named(events, "agent.tool_completed"),
        *named(events, "agent.tool_result"),
    ]
    assert [fields["parent_tool_use_id"] for fields in ends] == ["t1", None, "t1", "t1", None]
    assert updates.last_message == "x"


def test_unknown_call_is_started_by_an_update(updates: SessionUpdates) -> None:
    """An update alone starts a call; a second end yields no event."""
    events = mapped(updates, progress("9", status="completed"), progress("9", status="completed"))
    names = [name for name, _ in events]
    assert (names.count("agent.tool_use"), names.count("agent.tool_result")) == (1, 1)


def test_tool_call_is_published_before_its_approval(updates: SessionUpdates) -> None:
    """The call of an approval request is published first, and once."""
    list(updates.events_for(tool("1", rawInput={}, status="pending")))
    call, events = updates.call_for_approval({"toolCallId": "1", "rawInput": {"command": "rm"}, "title": "Run rm"})
    assert [name for name, _ in events] == ["agent.tool_use"]
    assert (call.tool, call.input, call.title) == ("execute", {"command": "rm"}, "Run rm")
    assert updates.call_for_approval({"toolCallId": "1"})[1] == []
    assert named(mapped(updates, progress("1", status="completed")), "agent.tool_use") == []


def test_plan_is_a_system_message(updates: SessionUpdates) -> None:
    """The event has the plan's entries unchanged."""
    entries = [{"content": "Read", "priority": "high", "status": "pending"}]
    events = mapped(updates, {"sessionUpdate": "plan", "entries": entries})
    assert named(events, "agent.system_message") == [{"metadata": {"subtype": "plan", "entries": entries}}]


def test_unknown_updates_are_ignored(updates: SessionUpdates) -> None:
    """Updates of a later protocol, or of no use to Sandherd, produce no event."""
    events = mapped(updates, {"sessionUpdate": "available_commands_update"}, {"sessionUpdate": "dance"}, {})
    assert [name for name, _ in events] == ["agent.assistant_message"]


def test_costs_are_differences_of_totals(updates: SessionUpdates) -> None:
    """Each turn is charged what the agent's running total has grown by, in whole micro-dollars."""
    cost = {"sessionUpdate": "usage_update", "used": 1, "size": 2, "cost": {"amount": 0.1, "currency": "USD"}}
    more = {**cost, "cost": {"amount": 0.3000004, "currency": "USD"}}
    first = named(mapped(updates, cost, usage={"inputTokens": 5, "cachedReadTokens": 2}), "agent.usage")
    assert [(usage["cost_micro_usd"], usage["input_tokens"], usage["cache_read_tokens"]) for usage in first] == [
        (100_000, 5, 2)
    ]
    assert [usage["cost_micro_usd"] for usage in named(mapped(updates, cost, more, more), "agent.usage")] == [200_000]
    assert named(mapped(updates, more), "agent.usage") == []


def test_costs_before_resume_are_not_charged() -> None:
    """Totals that the agent replays before the first new turn set the baseline, however often they are repeated."""
    costs = SessionCosts(resumed=True)
    for amount in (1.0, 4.0, 5.0):
        costs.record_total({"amount": amount, "currency": "USD"}, replayed=True)
    assert (costs.charge(None), costs.is_incomplete) == (None, False)
    costs.record_total({"amount": 5.5, "currency": "USD"})
    assert (costs.charge(None) or {})["cost_micro_usd"] == 500_000


def test_restarted_total_is_charged_whole() -> None:
    """An agent that resumes may count from zero; one that continues its total is charged the difference."""
    costs = SessionCosts(resumed=True)
    costs.record_total({"amount": 5.0, "currency": "USD"}, replayed=True)
    for amount in (0.2, 0.3):
        costs.record_total({"amount": amount, "currency": "USD"})
    assert (costs.charge(None) or {})["cost_micro_usd"] == 300_000


def test_first_total_within_a_turn_is_reported_as_incomplete() -> None:
    """A resumed session's first total in a turn becomes the baseline, and an error event reports the uncharged part."""
    updates = SessionUpdates(resumed=True)
    cost = {"sessionUpdate": "usage_update", "used": 1, "size": 2, "cost": {"amount": 5.0, "currency": "USD"}}
    more = {**cost, "cost": {"amount": 5.5, "currency": "USD"}}
    list(updates.begin_turn())
    events = mapped(updates, cost, more)
    assert [usage["cost_micro_usd"] for usage in named(events, "agent.usage")] == [500_000]
    assert [error["phase"] for error in named(events, "agent.error")] == ["usage"]
    assert named(mapped(updates, more), "agent.error") == []


def test_other_currency_is_not_charged() -> None:
    """A total in euros yields no charge in dollars."""
    costs = SessionCosts()
    costs.record_total({"amount": 5.0, "currency": "EUR"})
    costs.record_total(None)
    assert costs.charge({}) is None
