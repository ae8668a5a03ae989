"""From session updates to events: what an agent tells becomes what people and rules read. No agent is needed here."""

from collections.abc import Iterator
from typing import Any

import pytest

from sandherd_drivers.acp.costs import Costs
from sandherd_drivers.acp.updates import Updates
from sandherd_drivers.shortening import shorten
from sandherd_worker.harnesses.event_lines import read_line

Said = list[tuple[str, dict[str, Any]]]


@pytest.fixture
def updates() -> Updates:
    times = iter(range(1000))
    return Updates(clock=lambda: float(next(times)))


def chunk(text: str, kind: str = "agent_message_chunk", **more: Any) -> dict[str, Any]:
    return {"sessionUpdate": kind, "content": {"type": "text", "text": text}, **more}


def tool(id: str, **fields: Any) -> dict[str, Any]:
    return {"sessionUpdate": "tool_call", "toolCallId": id, "title": f"Call {id}", "kind": "execute", **fields}


def progress(id: str, **fields: Any) -> dict[str, Any]:
    return {"sessionUpdate": "tool_call_update", "toolCallId": id, **fields}


def told(updates: Updates, *told: dict[str, Any], stop: str = "end_turn", usage: Any = None) -> Said:
    """What is said of a turn with these updates."""

    def whole() -> Iterator[tuple[str, dict[str, Any]]]:
        yield from updates.begin_turn()
        for update in told:
            yield from updates.take(update)
        yield from updates.end_turn(stop, usage)

    said = list(whole())
    for event, fields in said:
        read_line(shorten(event, fields), 1)
    return said


def named(said: Said, event: str) -> list[dict[str, Any]]:
    return [fields for name, fields in said if name == event]


def test_chunks_are_one_message_at_its_end(updates: Updates) -> None:
    """The pieces of a text are said once, joined; another kind of text, or a tool call, ends it."""
    said = told(
        updates, chunk("Let "), chunk("me "), chunk("hm", "agent_thought_chunk"), chunk("see"), tool("1"), chunk("!")
    )
    texts = [fields["content"] for name, fields in said if name in {"agent.message", "agent.thinking"}]
    assert texts == ["Let me ", "hm", "see", "!"]
    assert [name for name, _ in said][:4] == ["agent.message", "agent.thinking", "agent.message", "agent.tool_use"]


def test_a_message_s_name_ends_the_one_before(updates: Updates) -> None:
    """Two messages in a row are two, if the agent names them."""
    said = told(updates, chunk("a", messageId="1"), chunk("b", messageId="1"), chunk("c", messageId="2"))
    assert [fields["content"] for fields in named(said, "agent.message")] == ["ab", "c"]
    assert updates.last_message == "c"


def test_what_does_not_interrupt_a_text(updates: Updates) -> None:
    """Usage, and a tool that goes on beside it, leave a text whole."""
    usage = {"sessionUpdate": "usage_update", "used": 1, "size": 2}
    said = told(updates, tool("1"), chunk("a"), usage, progress("1", content=[]), chunk("b"))
    assert [fields["content"] for fields in named(said, "agent.message")] == ["ab"]


def test_a_text_without_an_end_is_said_in_parts(updates: Updates) -> None:
    """Each part fits a line, and nothing is lost."""
    said = told(updates, *(chunk("x" * 150_000) for _ in range(10)), chunk("y" * 700_000))
    contents = [fields["content"] for fields in named(said, "agent.message")]
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
def test_what_is_no_text_is_named(updates: Updates, block: dict[str, Any], text: str) -> None:
    """An image in a message is not lost without a word."""
    said = told(updates, {"sessionUpdate": "agent_message_chunk", "content": block})
    assert named(said, "agent.message")[0]["content"] == text


def test_a_tool_call_has_a_begin_and_an_end(updates: Updates) -> None:
    """Begun at its first update, in flight, and ended with what it gave and how long it took."""
    begun = tool("1", rawInput={"command": "ls"})
    running = progress("1", status="in_progress")
    content = [{"type": "content", "content": {"type": "text", "text": "a.py"}}, {"type": "diff", "path": "/w/a.py"}]
    said = told(updates, begun, running, progress("1", status="completed", content=content, rawOutput={"code": 0}))
    assert [name for name, _ in said][:3] == ["agent.tool_use", "agent.tool_completed", "agent.tool_result"]
    assert named(said, "agent.tool_use") == [{"tool": "execute", "tool_use_id": "1", "input": {"command": "ls"}}]
    completed = named(said, "agent.tool_completed")[0]
    assert completed["tool_response"] == {"code": 0}
    assert completed["duration_ms"] > 0
    assert named(said, "agent.tool_result")[0] == {
        "tool_use_id": "1", "result": "a.py\nchanged /w/a.py", "result_truncated": False, "result_full_length": 20,
        "is_error": False,
    }  # fmt: skip


def test_a_failed_tool_is_an_error(updates: Updates) -> None:
    """Its end says so."""
    said = told(updates, tool("1"), progress("1", status="failed", rawOutput="no such file"))
    result = named(said, "agent.tool_result")[0]
    assert (result["is_error"], result["result"]) == (True, "no such file")


def test_a_long_answer_is_cut(updates: Updates) -> None:
    """At 5,000 characters, and the event says how long it was."""
    result = named(told(updates, tool("1", status="completed", rawOutput="x" * 9000)), "agent.tool_result")[0]
    assert (len(result["result"]), result["result_truncated"], result["result_full_length"]) == (5000, True, 9000)


def test_a_tool_that_has_no_end_ends_with_its_turn(updates: Updates) -> None:
    """Nothing stays in flight for ever, and the next turn's updates of it open nothing anew."""
    said = told(updates, tool("1"), tool("2", status="in_progress"), stop="cancelled")
    ends = [(fields["tool_use_id"], fields["is_error"]) for fields in named(said, "agent.tool_result")]
    assert ends == [("1", True), ("2", True)]
    assert named(said, "agent.tool_completed") == []
    assert named(told(updates, progress("1", status="completed")), "agent.tool_use") == []


def test_an_input_that_is_still_written_is_waited_for(updates: Updates) -> None:
    """A call whose input is empty at first begins with its whole input, or when it begins to run."""
    said = told(updates, tool("1", rawInput={}, status="pending"), progress("1", rawInput={"command": "ls"}))
    assert named(said, "agent.tool_use")[0]["input"] == {"command": "ls"}
    said = told(updates, tool("2", rawInput={}, status="pending"), progress("2", status="in_progress"))
    assert named(said, "agent.tool_use")[0]["input"] == {"title": "Call 2"}


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
def test_a_tool_s_name(updates: Updates, fields: dict[str, Any], name: str) -> None:
    """The agent's own name for it if it tells one, then the kind, then what it shows people."""
    assert named(told(updates, tool("1", **fields)), "agent.tool_use")[0]["tool"] == name


def test_without_an_input_people_see_what_is_shown(updates: Updates) -> None:
    """The title and the files, when the agent keeps its input to itself."""
    said = told(updates, tool("1", locations=[{"path": "/w/a"}, {"path": "/w/b", "line": 3}]))
    assert named(said, "agent.tool_use")[0]["input"] == {"title": "Call 1", "paths": ["/w/a", "/w/b"]}


def test_a_call_that_was_never_begun_is_begun(updates: Updates) -> None:
    """An update alone makes a call known; a second end says nothing."""
    said = told(updates, progress("9", status="completed"), progress("9", status="completed"))
    names = [name for name, _ in said]
    assert (names.count("agent.tool_use"), names.count("agent.tool_result")) == (1, 1)


def test_leave_is_asked_for_a_call_that_people_can_see(updates: Updates) -> None:
    """The call is said before the question, once."""
    list(updates.take(tool("1", rawInput={}, status="pending")))
    call, said = updates.asked_about({"toolCallId": "1", "rawInput": {"command": "rm"}, "title": "Run rm"})
    assert [name for name, _ in said] == ["agent.tool_use"]
    assert (call.tool, call.input, call.title) == ("execute", {"command": "rm"}, "Run rm")
    assert updates.asked_about({"toolCallId": "1"})[1] == []
    assert named(told(updates, progress("1", status="completed")), "agent.tool_use") == []


def test_a_plan_is_a_system_message(updates: Updates) -> None:
    """With its entries as they are."""
    entries = [{"content": "Read", "priority": "high", "status": "pending"}]
    said = told(updates, {"sessionUpdate": "plan", "entries": entries})
    assert named(said, "agent.system_message") == [{"metadata": {"subtype": "plan", "entries": entries}}]


def test_what_is_not_known_says_nothing(updates: Updates) -> None:
    """Updates of a later protocol, or of no use here, are passed over."""
    said = told(updates, {"sessionUpdate": "available_commands_update"}, {"sessionUpdate": "dance"}, {})
    assert [name for name, _ in said] == ["agent.assistant_message"]


def test_costs_are_differences(updates: Updates) -> None:
    """The agent tells a running total; each turn is charged what it has added, in whole micro-dollars."""
    cost = {"sessionUpdate": "usage_update", "used": 1, "size": 2, "cost": {"amount": 0.1, "currency": "USD"}}
    more = {**cost, "cost": {"amount": 0.3000004, "currency": "USD"}}
    first = named(told(updates, cost, usage={"inputTokens": 5, "cachedReadTokens": 2}), "agent.usage")
    assert [(usage["cost_micro_usd"], usage["input_tokens"], usage["cache_read_tokens"]) for usage in first] == [
        (100_000, 5, 2)
    ]
    assert [usage["cost_micro_usd"] for usage in named(told(updates, cost, more, more), "agent.usage")] == [200_000]
    assert named(told(updates, more), "agent.usage") == []


def test_what_a_session_has_cost_before_is_not_charged_again() -> None:
    """What the agent tells of it before our first turn is where counting begins, however often it tells it."""
    costs = Costs(resumed=True)
    for amount in (1.0, 4.0, 5.0):
        costs.take({"amount": amount, "currency": "USD"}, replayed=True)
    assert (costs.charge(None), costs.lost) == (None, False)
    costs.take({"amount": 5.5, "currency": "USD"})
    assert (costs.charge(None) or {})["cost_micro_usd"] == 500_000


def test_a_total_that_was_begun_anew_is_charged_whole() -> None:
    """An agent that takes a session up may count from nothing, and one that counts on is charged what comes on top."""
    costs = Costs(resumed=True)
    costs.take({"amount": 5.0, "currency": "USD"}, replayed=True)
    for amount in (0.2, 0.3):
        costs.take({"amount": amount, "currency": "USD"})
    assert (costs.charge(None) or {})["cost_micro_usd"] == 300_000


def test_a_first_total_in_the_middle_of_a_turn_is_no_secret_loss() -> None:
    """It holds what somebody was charged for before, and part of this turn: that is said, and counting begins there."""
    updates = Updates(resumed=True)
    cost = {"sessionUpdate": "usage_update", "used": 1, "size": 2, "cost": {"amount": 5.0, "currency": "USD"}}
    more = {**cost, "cost": {"amount": 5.5, "currency": "USD"}}
    list(updates.begin_turn())
    said = told(updates, cost, more)
    assert [usage["cost_micro_usd"] for usage in named(said, "agent.usage")] == [500_000]
    assert [error["phase"] for error in named(said, "agent.error")] == ["usage"]
    assert named(told(updates, more), "agent.error") == []


def test_another_currency_is_not_taken_for_dollars() -> None:
    """It is not charged."""
    costs = Costs()
    costs.take({"amount": 5.0, "currency": "EUR"})
    costs.take(None)
    assert costs.charge({}) is None
