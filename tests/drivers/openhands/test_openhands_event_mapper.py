"""Events of a conversation become the worker's events, without the SDK."""

from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandherd.contracts.events import EVENTS
from sandherd_drivers.openhands.event_mapper import (
    MAX_RESULT_LENGTH,
    Document,
    EventLine,
    OpenHandsEventMapper,
    terminal_output,
)
from sandherd_drivers.openhands.task_work import outcome_of_status
from sandherd_drivers.openhands.tool_results import call_result
from sandherd_drivers.openhands.usage import ConversationTotals, UsageMeter


def new_mapper() -> OpenHandsEventMapper:
    ticks = count()
    return OpenHandsEventMapper("a-model", lambda: float(next(ticks)))


def map_events(mapper: OpenHandsEventMapper, *events: Document) -> list[EventLine]:
    """Map the events of a conversation; each result must be an event that a worker accepts."""
    mapped = [line for event in events for line in mapper.events_for(event)]
    for type, data in mapped:
        EVENTS[type].model_validate({"turn": 1, **data})
    return mapped


def action(call: str, tool: str = "terminal", **more: Any) -> Document:
    given = {"kind": "TerminalAction", "command": "ls", "timeout": None}
    return {
        "kind": "ActionEvent",
        "tool_name": tool,
        "tool_call_id": call,
        "action": given,
        "llm_response_id": "answer-1",
        **more,
    }


def result(call: str, shown: str = "a.txt", **observation: Any) -> Document:
    seen = {"kind": "TerminalObservation", "content": [{"type": "text", "text": shown}], "is_error": False}
    return {"kind": "ObservationEvent", "tool_call_id": call, "shown": shown, "observation": {**seen, **observation}}


def test_call_has_start_and_end() -> None:
    """The events have input and result; absent fields are left out."""
    mapped = map_events(new_mapper(), action("call-1"), result("call-1", exit_code=0))
    assert [type for type, _ in mapped] == [
        "agent.assistant_message",
        "agent.tool_use",
        "agent.tool_result",
        "agent.tool_completed",
    ]
    data = dict(mapped)
    assert data["agent.tool_use"]["input"] == {"command": "ls"}
    assert data["agent.tool_completed"]["tool_response"] == {"is_error": False, "exit_code": 0}
    assert data["agent.tool_completed"]["duration_ms"] == 1000


def test_calls_of_one_response_are_one_response() -> None:
    """The response is published once, its texts and thoughts before its calls; both calls are open until both end."""
    agent = new_mapper()
    first = action("call-1", thought=[{"text": "I look."}], reasoning_content="Where?")
    mapped = map_events(agent, first, action("call-2"))
    assert [type for type, _ in mapped] == [
        "agent.assistant_message",
        "agent.thinking",
        "agent.message",
        "agent.tool_use",
        "agent.tool_use",
    ]
    map_events(agent, result("call-1"))
    assert agent.is_busy
    map_events(agent, result("call-2"))
    assert not agent.is_busy


REJECTED = {"kind": "UserRejectObservation", "rejection_source": "hook"}
FAILED = {"kind": "AgentErrorEvent"}


@pytest.mark.parametrize(
    ("event", "outcome"),
    [
        (result("1", exit_code=0), ("ok", 0)),
        (result("1", exit_code=3), ("failed", 3)),
        (result("1", exit_code=-1), ("timed_out", None)),
        (result("1", exit_code=130, timeout=True), ("timed_out", None)),
        (result("1", exit_code=-1, is_error=True), ("failed", None)),
        (result("1", exit_code=None, is_error=True), ("failed", None)),
        (result("1", exit_code="3"), ("ok", None)),
        ({"kind": "ObservationEvent"}, ("ok", None)),
        ({**FAILED, "error": "no such tool"}, ("failed", None)),
        ({**FAILED, "error": "Tool call interrupted before completion. The"}, ("cancelled", None)),
        ({**REJECTED, "action_id": "a1"}, ("refused", None)),
        ({**REJECTED, "action_id": "a2"}, ("denied", None)),
        ({**REJECTED, "rejection_source": "user"}, ("cancelled", None)),
    ],
)
def test_outcome_is_what_the_sdk_reports(event: Document, outcome: tuple[str, int | None]) -> None:
    """The exit status of a command decides, with the SDK's own marks; a denial has the outcome of its decision."""
    found = call_result(event, {"a1": "refused"})
    assert (found.outcome, found.exit_code) == outcome


@pytest.mark.parametrize(
    "event",
    [
        {"kind": "UserRejectObservation", "rejection_reason": "no"},
        {"kind": "AgentErrorEvent", "error": "no such tool"},
        {"kind": "ObservationEvent", "observation": {"is_error": True}},
    ],
    ids=lambda event: str(event["kind"]),
)
def test_failed_call_is_an_error(event: Document) -> None:
    """Any report of the failure ends the call."""
    agent = new_mapper()
    mapped = dict(map_events(agent, action("call-1", action=None), {"tool_call_id": "call-1", "shown": "no", **event}))
    assert mapped["agent.tool_result"]["is_error"] is True
    assert mapped["agent.tool_use"]["input"] == {}
    assert not agent.is_busy


def test_finish_and_think_calls_are_texts() -> None:
    """A finish is a message, a think is a thought; both are open until their result."""
    agent = new_mapper()
    done = action("call-1", "finish", action={"kind": "FinishAction", "message": "Done."})
    thought = action("call-2", "think", action={"kind": "ThinkAction", "thought": "Hm."})
    mapped = map_events(agent, thought, done)
    assert [type for type, _ in mapped] == ["agent.assistant_message", "agent.thinking", "agent.message"]
    assert agent.is_busy
    assert map_events(agent, result("call-1"), result("call-2")) == []
    assert (agent.is_busy, agent.last_message) == (False, "Done.")


def test_sources_of_messages_are_distinguished() -> None:
    """The agent's texts are its messages; the SDK's own are notes; the worker publishes the user's."""
    mine = {"kind": "MessageEvent", "source": "agent", "shown": "Hello.", "llm_message": {"reasoning_content": "Hm."}}
    sdk = {"kind": "MessageEvent", "source": "environment", "shown": "You repeat yourself.", "sender": None}
    ours = {"kind": "MessageEvent", "source": "user", "shown": "Go on.", "sender": "user_message"}
    mapped = map_events(new_mapper(), mine, sdk, ours)
    assert [type for type, _ in mapped] == ["agent.thinking", "agent.message", "agent.system_message"]
    assert mapped[-1][1]["metadata"] == {"subtype": "note", "content": "You repeat yourself."}


def test_long_result_is_truncated_with_its_length() -> None:
    """The limit is that of an event; the full length is stated."""
    data = dict(map_events(new_mapper(), action("call-1"), result("call-1", "x" * (MAX_RESULT_LENGTH + 1))))[
        "agent.tool_result"
    ]
    assert (len(data["result"]), data["result_truncated"]) == (MAX_RESULT_LENGTH, True)
    assert data["result_full_length"] == MAX_RESULT_LENGTH + 1


def test_conversation_event_of_the_sdk_is_a_note() -> None:
    """The system prompt, a summary of the conversation, a pause and a stop are notes."""
    prompt = {"kind": "SystemPromptEvent", "system_prompt": {"text": "You are"}, "tools": [{"title": "terminal"}]}
    summary = {"kind": "Condensation", "forgotten_event_ids": ["a", "b"], "summary": "It was long."}
    bare = ("CondensationRequest", "PauseEvent", "InterruptEvent", "ConversationStateUpdateEvent")
    mapped = map_events(new_mapper(), prompt, summary, *({"kind": kind} for kind in bare))
    assert mapped.pop(1) == ("agent.context_compacted", {"trigger": "automatic", "messages_removed": 2})
    assert [data["metadata"] for _, data in mapped] == [
        {"subtype": "system_prompt", "tools": ["terminal"], "content_length": 7},
        {"subtype": "condensation", "forgotten": 2, "summary": "It was long."},
        {"subtype": "condensation_request"},
        {"subtype": "paused"},
        {"subtype": "interrupted"},
    ]


@pytest.mark.parametrize(
    ("event", "thoughts"),
    [
        ({"thinking_blocks": [{"thinking": "a"}, {"data": "hidden"}], "reasoning_content": "a"}, ["a"]),
        ({"reasoning_content": "b"}, ["b"]),
        ({"responses_reasoning_item": {"summary": ["c"], "content": ["d"]}}, ["c", "d"]),
        ({"responses_reasoning_item": {"summary": [], "content": None}}, []),
    ],
)
def test_thought_is_published_once(event: Document, thoughts: list[str]) -> None:
    """The model's provider may put a thought in any place, or in two."""
    mapped = map_events(new_mapper(), action("call-1", **event))
    assert [data["content"] for type, data in mapped if type == "agent.thinking"] == thoughts


def test_terminal_shows_only_commands_and_their_output() -> None:
    """Only commands and their output are shown in the terminal."""
    assert terminal_output(result("call-1", "a.txt\n\n", command="ls")) == "$ ls\na.txt\n"
    assert terminal_output({"kind": "MessageEvent"}) == ""


@given(st.lists(st.tuples(st.floats(0, 10), st.integers(0, 10_000), st.integers(0, 5_000)), max_size=20))
def test_differences_add_up_to_the_usage(steps: list[tuple[float, int, int]]) -> None:
    """Whatever the figures are, rounding loses nothing, and earlier usage is not charged."""
    total = ConversationTotals(1.0, 500, 50, 10, 20)
    meter = UsageMeter(total)
    differences: list[dict[str, Any]] = []
    for cost, prompt, output in steps:
        total = ConversationTotals(
            total.cost_usd + cost, total.prompt_tokens + prompt, total.output_tokens + output, 10, 20
        )
        differences += _some(meter.difference(total))
    spent = {name: sum(difference[name] for difference in differences) for name in total.event_fields()}
    began = ConversationTotals(1.0, 500, 50, 10, 20).event_fields()
    assert spent == {name: figure - began[name] for name, figure in total.event_fields().items()}


def _some(difference: dict[str, Any] | None) -> Iterator[dict[str, Any]]:
    if difference is not None:
        yield difference


def test_turn_without_usage_reports_none() -> None:
    """A turn that was stopped before a request to its model costs nothing."""
    assert UsageMeter(ConversationTotals(1.0)).difference(ConversationTotals(1.0)) is None


def test_missing_key_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that refuses a request without a key is permanent; with a key, the server's own text is enough."""
    fault = {"code": "LLMAuthenticationError", "detail": "no key", "classification": {"kind": "auth"}}
    monkeypatch.delenv("LLM_API_KEY", raising=False)
    outcome = outcome_of_status("error", fault, stopped=False)
    assert outcome.error_type == "model_refused"
    assert "LLM_API_KEY is not set: add --secret-env LLM_API_KEY" in outcome.error
    monkeypatch.setenv("LLM_API_KEY", "x")
    assert "LLM_API_KEY" not in outcome_of_status("error", fault, stopped=False).error


@pytest.mark.parametrize(
    ("status", "fault", "error_type", "stop_reason"),
    [
        ("finished", None, None, "finished"),
        ("stuck", None, "exit_status", "stuck"),
        ("error", {"code": "MaxIterationsReached"}, "exit_status", "max_iterations"),
        ("error", {"code": "LLMRateLimitError", "classification": {"kind": "rate_limit"}}, "model_unavailable", None),
        ("error", {"code": "LLMTimeoutError", "classification": {"kind": "transient"}}, "model_unavailable", None),
        ("error", {"code": "LLMBadRequestError", "classification": {"kind": "config"}}, "model_refused", None),
        ("error", None, "exit_status", "error"),
    ],
)
def test_outcome_follows_the_status_and_its_fault(
    status: str, fault: Document | None, error_type: str | None, stop_reason: str | None
) -> None:
    """A temporary fault is retried; all others are the agent's own failure."""
    outcome = outcome_of_status(status, fault, stopped=False)
    assert (outcome.error_type, outcome.is_final) == (error_type, True)
    assert outcome.stop_reason == (stop_reason or (fault or {})["code"])


@pytest.mark.parametrize("status", ["paused", "interrupted", "idle", "waiting_for_confirmation"])
def test_stopped_turn_is_no_outcome(status: str) -> None:
    """The interrupt or stop determines what follows."""
    assert not outcome_of_status(status, None, stopped=False).is_final
    assert outcome_of_status(status, None, stopped=True).stop_reason == "stopped"
