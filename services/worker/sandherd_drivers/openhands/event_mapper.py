"""Maps a conversation's events to the worker's. Events are documents here: as stored by the SDK, with `shown` added."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from sandherd_drivers.openhands.tool_results import call_result

Document = dict[str, Any]
"""An event: its fields, its class as `kind`, and as `shown` its text as the model sees it."""
EventLine = tuple[str, dict[str, Any]]
"""The type of a worker's event, and its fields."""

MAX_RESULT_LENGTH: Final = 5000
_FINISH_TOOL: Final = "finish"
_TEXT_ARGUMENTS: Final = {_FINISH_TOOL: "message", "think": "thought"}
"""Tools that only carry a text, and the argument with that text."""
_PUBLISHED_ELSEWHERE: Final = frozenset({"kind", "content", "old_content", "new_content"})
"""Parts of a tool's response that are published elsewhere: the text as the result, files by the file tracker."""


@dataclass(frozen=True)
class _OpenCall:
    tool: str
    input: dict[str, Any]
    started_at: float
    is_text_only: bool
    """Whether the call only carries a text of the agent: it is published as a message or a thought."""


@dataclass
class OpenHandsEventMapper:
    """Maps the events of one conversation in order; tracks open calls and the last message."""

    model: str | None
    clock: Callable[[], float]
    last_message: str | None = None
    """The agent's last text: its final output when it has ended."""
    last_error: Document | None = None
    """The last error that ended a run."""
    denials: dict[str, str] = field(default_factory=dict)
    """The outcomes of calls that were denied, by the ids of their actions."""
    _open_calls: dict[str, _OpenCall] = field(default_factory=dict)
    _response_ids: set[str] = field(default_factory=set)

    @property
    def is_busy(self) -> bool:
        """Whether a call is open: the model can't get a message before the call's result."""
        return bool(self._open_calls)

    def events_for(self, event: Document) -> Iterator[EventLine]:
        """The worker's events for this event, in order."""
        kind = event.get("kind")
        if kind == "ActionEvent":
            yield from self._action_events(event)
        elif kind in {"ObservationEvent", "UserRejectObservation", "AgentErrorEvent"}:
            yield from self._result_events(event)
        elif kind == "MessageEvent":
            yield from self._message_events(event)
        elif kind == "ConversationErrorEvent":
            self.last_error = event
            yield "agent.error", {"error": f"{event.get('code')}: {event.get('detail')}", "phase": "conversation"}
        elif kind in _NOTICES:
            if kind == "Condensation":
                # The driver requests none, so each is the SDK's own.
                removed = len(event.get("forgotten_event_ids") or ())
                yield "agent.context_compacted", {"trigger": "automatic", "messages_removed": removed}
            yield "agent.system_message", {"metadata": _NOTICES[kind](event)}

    def _action_events(self, event: Document) -> Iterator[EventLine]:
        yield from self._response_events(event, stop_reason="tool_use")
        yield from self._text_events(" ".join(part.get("text", "") for part in event.get("thought") or ()))
        tool, tool_use_id = str(event.get("tool_name")), str(event.get("tool_call_id"))
        arguments = _arguments(event)
        text_argument = _TEXT_ARGUMENTS.get(tool) if arguments else None
        self._open_calls[tool_use_id] = _OpenCall(tool, arguments, self.clock(), is_text_only=text_argument is not None)
        if text_argument is None:
            yield "agent.tool_use", {"tool": tool, "tool_use_id": tool_use_id, "input": arguments}
        elif tool == _FINISH_TOOL:
            yield from self._text_events(str(arguments.get(text_argument, "")))
        else:
            yield "agent.thinking", {"content": str(arguments.get(text_argument, "")), "thinking_type": "tool"}

    def _result_events(self, event: Document) -> Iterator[EventLine]:
        tool_use_id, shown = str(event.get("tool_call_id")), str(event.get("shown", ""))
        observation = event.get("observation") or {}
        open_call = self._open_calls.pop(tool_use_id, None)
        if open_call is None or open_call.is_text_only:
            return
        facts = call_result(event, self.denials).fields()
        yield (
            "agent.tool_result",
            {
                "tool_use_id": tool_use_id,
                "result": shown[:MAX_RESULT_LENGTH],
                "result_truncated": len(shown) > MAX_RESULT_LENGTH,
                "result_full_length": len(shown),
                "is_error": event["kind"] != "ObservationEvent" or bool(observation.get("is_error")),
                **facts,
            },
        )
        yield (
            "agent.tool_completed",
            {
                "tool": open_call.tool,
                "tool_use_id": tool_use_id,
                "tool_input": open_call.input,
                "tool_response": _response_fields(event, observation),
                "duration_ms": (self.clock() - open_call.started_at) * 1000,
                **facts,
            },
        )

    def _message_events(self, event: Document) -> Iterator[EventLine]:
        shown = str(event.get("shown", ""))
        if event.get("source") == "agent":
            yield from self._response_events({**event.get("llm_message", {}), **event}, stop_reason="end_turn")
            yield from self._text_events(shown)
        elif event.get("sender") is None:
            # A note of the SDK to the model. Messages that the driver sent have a sender, and the worker publishes
            # them.
            yield "agent.system_message", {"metadata": {"subtype": "note", "content": shown}}

    def _response_events(self, event: Document, stop_reason: str) -> Iterator[EventLine]:
        """The model's response, published once for all its calls; and its thoughts."""
        response_id = event.get("llm_response_id")
        if response_id is not None and response_id not in self._response_ids:
            self._response_ids.add(response_id)
            yield "agent.assistant_message", {"model": self.model, "stop_reason": stop_reason}
        for thinking_type, thought in _thoughts(event):
            yield "agent.thinking", {"content": thought, "thinking_type": thinking_type}

    def _text_events(self, text: str) -> Iterator[EventLine]:
        if text.strip():
            self.last_message = text
            yield "agent.message", {"content": text, "content_length": len(text)}


def terminal_output(event: Document) -> str:
    """The terminal output for this event: a command and its output; empty for all other events."""
    observation = event.get("observation") or {}
    if observation.get("kind") != "TerminalObservation":
        return ""
    text = "".join(part.get("text", "") for part in observation.get("content") or ())
    return f"$ {observation.get('command') or ''}\n{text.rstrip()}\n"


def _arguments(event: Document) -> dict[str, Any]:
    """The arguments of a call; empty if the SDK could not parse the call."""
    action = event.get("action")
    if not isinstance(action, dict):
        return {}
    return {name: value for name, value in action.items() if name != "kind" and value is not None}


def _response_fields(event: Document, observation: Document) -> dict[str, Any]:
    """The response of a call without its text."""
    if event["kind"] != "ObservationEvent":
        return {"error": event.get("error") or event.get("rejection_reason")}
    return {name: value for name, value in observation.items() if name not in _PUBLISHED_ELSEWHERE}


def _thoughts(event: Document) -> Iterator[tuple[str, str]]:
    """The model's thoughts, from the field in which its provider returns them."""
    blocks = [block.get("thinking") for block in event.get("thinking_blocks") or ()]
    item = event.get("responses_reasoning_item") or {}
    if thoughts := [block for block in blocks if block]:
        yield from (("thinking", block) for block in thoughts)
    elif content := event.get("reasoning_content"):
        yield "reasoning", content
    else:
        yield from (("reasoning", text) for text in [*(item.get("summary") or ()), *(item.get("content") or ())])


def _system_prompt(event: Document) -> dict[str, Any]:
    tools = [tool.get("title") or tool.get("kind") for tool in event.get("tools") or ()]
    length = len((event.get("system_prompt") or {}).get("text", ""))
    return {"subtype": "system_prompt", "tools": tools, "content_length": length}


def _condensation(event: Document) -> dict[str, Any]:
    forgotten = len(event.get("forgotten_event_ids") or ())
    return {"subtype": "condensation", "forgotten": forgotten, "summary": event.get("summary")}


_NOTICES: Final[dict[str, Callable[[Document], dict[str, Any]]]] = {
    "SystemPromptEvent": _system_prompt,
    "Condensation": _condensation,
    "CondensationRequest": lambda _: {"subtype": "condensation_request"},
    "PauseEvent": lambda _: {"subtype": "paused"},
    "InterruptEvent": lambda _: {"subtype": "interrupted"},
}
"""Events without a message, and the metadata published for them."""
