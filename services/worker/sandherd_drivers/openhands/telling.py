"""A conversation's events in the worker's words. Events are documents here: as the SDK keeps them, and `shown`."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

Document = dict[str, Any]
"""An event: its fields, its class as `kind`, and as `shown` the text of it that the model is shown."""
Said = tuple[str, dict[str, Any]]
"""The type of an event of ours, and its fields."""

LONGEST_RESULT: Final = 5000
_FINISH: Final = "finish"
_WORDS: Final = {_FINISH: "message", "think": "thought"}
"""Tools that say something and do nothing, and where they have what they say."""
_ELSEWHERE: Final = frozenset({"kind", "content", "old_content", "new_content"})
"""Parts of an answer that are said by others: its text by the result, a file's by who watches the work tree."""


@dataclass(frozen=True)
class _Open:
    tool: str
    input: dict[str, Any]
    since: float
    silent: bool
    """Words of the agent's in the shape of a call: they are said as words."""


@dataclass
class Telling:
    """Says event after event; knows which calls are open and what was said last."""

    model: str | None
    clock: Callable[[], float]
    last_words: str | None = None
    """The agent's last text: what it says of its work when it has ended."""
    last_error: Document | None = None
    """The last fault that ended a run."""
    _open: dict[str, _Open] = field(default_factory=dict)
    _answers: set[str] = field(default_factory=set)

    @property
    def busy(self) -> bool:
        """Whether a call is open: the model can be told nothing before it has the answer."""
        return bool(self._open)

    def tell(self, event: Document) -> Iterator[Said]:
        """What is to be said of this event, in order."""
        kind = event.get("kind")
        if kind == "ActionEvent":
            yield from self._action(event)
        elif kind in {"ObservationEvent", "UserRejectObservation", "AgentErrorEvent"}:
            yield from self._result(event)
        elif kind == "MessageEvent":
            yield from self._message(event)
        elif kind == "ConversationErrorEvent":
            self.last_error = event
            yield "agent.error", {"error": f"{event.get('code')}: {event.get('detail')}", "phase": "conversation"}
        elif kind in _NOTES:
            yield "agent.system_message", {"metadata": _NOTES[kind](event)}

    def _action(self, event: Document) -> Iterator[Said]:
        yield from self._answer(event, stop_reason="tool_use")
        yield from self._speak(" ".join(part.get("text", "") for part in event.get("thought") or ()))
        tool, call = str(event.get("tool_name")), str(event.get("tool_call_id"))
        given = _input(event)
        word = _WORDS.get(tool) if given else None
        self._open[call] = _Open(tool, given, self.clock(), silent=word is not None)
        if word is None:
            yield "agent.tool_use", {"tool": tool, "tool_use_id": call, "input": given}
        elif tool == _FINISH:
            yield from self._speak(str(given.get(word, "")))
        else:
            yield "agent.thinking", {"content": str(given.get(word, "")), "thinking_type": "tool"}

    def _result(self, event: Document) -> Iterator[Said]:
        call, shown = str(event.get("tool_call_id")), str(event.get("shown", ""))
        observation = event.get("observation") or {}
        opened = self._open.pop(call, None)
        if opened is None or opened.silent:
            return
        yield (
            "agent.tool_result",
            {
                "tool_use_id": call,
                "result": shown[:LONGEST_RESULT],
                "result_truncated": len(shown) > LONGEST_RESULT,
                "result_full_length": len(shown),
                "is_error": event["kind"] != "ObservationEvent" or bool(observation.get("is_error")),
            },
        )
        yield (
            "agent.tool_completed",
            {
                "tool": opened.tool,
                "tool_use_id": call,
                "tool_input": opened.input,
                "tool_response": _response(event, observation),
                "duration_ms": (self.clock() - opened.since) * 1000,
            },
        )

    def _message(self, event: Document) -> Iterator[Said]:
        shown = str(event.get("shown", ""))
        if event.get("source") == "agent":
            yield from self._answer({**event.get("llm_message", {}), **event}, stop_reason="end_turn")
            yield from self._speak(shown)
        elif event.get("sender") is None:
            # The SDK's own word to the model. What we have sent names its sender, and the worker tells it.
            yield "agent.system_message", {"metadata": {"subtype": "note", "content": shown}}

    def _answer(self, event: Document, stop_reason: str) -> Iterator[Said]:
        """That the model has answered, once for all calls of one answer; and what it thought."""
        answer = event.get("llm_response_id")
        if answer is not None and answer not in self._answers:
            self._answers.add(answer)
            yield "agent.assistant_message", {"model": self.model, "stop_reason": stop_reason}
        for thinking_type, thought in _thoughts(event):
            yield "agent.thinking", {"content": thought, "thinking_type": thinking_type}

    def _speak(self, text: str) -> Iterator[Said]:
        if text.strip():
            self.last_words = text
            yield "agent.message", {"content": text, "content_length": len(text)}


def printed(event: Document) -> str:
    """What a terminal would have shown of this event: a command and what it wrote; nothing for all else."""
    observation = event.get("observation") or {}
    if observation.get("kind") != "TerminalObservation":
        return ""
    text = "".join(part.get("text", "") for part in observation.get("content") or ())
    return f"$ {observation.get('command') or ''}\n{text.rstrip()}\n"


def _input(event: Document) -> dict[str, Any]:
    """What a call was given; empty if the call was none that the SDK could read."""
    action = event.get("action")
    if not isinstance(action, dict):
        return {}
    return {name: value for name, value in action.items() if name != "kind" and value is not None}


def _response(event: Document, observation: Document) -> dict[str, Any]:
    """What a call gave beside its text."""
    if event["kind"] != "ObservationEvent":
        return {"error": event.get("error") or event.get("rejection_reason")}
    return {name: value for name, value in observation.items() if name not in _ELSEWHERE}


def _thoughts(event: Document) -> Iterator[tuple[str, str]]:
    """What the model thought, from the place where its provider's answer had it."""
    blocks = [block.get("thinking") for block in event.get("thinking_blocks") or ()]
    item = event.get("responses_reasoning_item") or {}
    if found := [block for block in blocks if block]:
        yield from (("thinking", block) for block in found)
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


_NOTES: Final[dict[str, Callable[[Document], dict[str, Any]]]] = {
    "SystemPromptEvent": _system_prompt,
    "Condensation": _condensation,
    "CondensationRequest": lambda _: {"subtype": "condensation_request"},
    "PauseEvent": lambda _: {"subtype": "paused"},
    "InterruptEvent": lambda _: {"subtype": "interrupted"},
}
"""Events that are no one's words, and what is said of them."""
