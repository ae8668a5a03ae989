"""Maps SDK messages to events, one for each block, with the results of tools as text.

This module does not import the SDK; classes are matched by name.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, Final

from sandherd_drivers.call_results import CallResult, count
from sandherd_drivers.claude.tool_results import MAX_RESULT_LENGTH, call_result, result_text

EventLine = tuple[str, dict[str, Any]]
"""The type of an event, and its fields except the turn."""

SUBAGENT_TOOL: Final = "Task"
SKILL_TOOL: Final = "Skill"
PARENT_FIELD: Final = "parent_tool_use_id"
_COMPACTION_TRIGGERS: Final = {"auto": "automatic", "manual": "requested"}
_TOOL_ALIASES: Final = {"Agent": SUBAGENT_TOOL}
_UNPUBLISHED_SUBTYPES: Final = frozenset({"thinking_tokens", "session_state_changed"})
"""System messages that are sent many times a second, or are published in another form."""
_INIT_FIELDS: Final = (
    "subtype", "cwd", "model", "permissionMode", "claude_code_version", "tools", "mcp_servers", "agents", "skills"
)  # fmt: skip


def tool_name(name: str) -> str:
    """The canonical name of a tool: hooks and permission requests name some of them differently from blocks."""
    return _TOOL_ALIASES.get(name, name)


@dataclass
class OpenCall:
    """A tool call that has no result yet."""

    tool: str
    input: dict[str, Any]
    started_at: float
    parent: str | None = None
    """The id of the call that started the sub-agent which makes this call."""


@dataclass
class ModelResponse:
    """One message of the model, whose blocks come one by one."""

    id: str | None
    model: str | None
    blocks: int = 0
    stop_reason: str | None = None
    parent: str | None = None
    """The id of the call that started the sub-agent which uses the model."""


@dataclass
class ClaudeEventMapper:
    """Maps the messages of one session; tracks calls that wait for their results."""

    now: Callable[[], float] = monotonic
    model: str | None = None
    last_entry_id: str | None = None
    """The id of the last message that must be in the transcript."""
    denials: dict[str, str] = field(default_factory=dict)
    """The outcomes of calls that were not executed, by their ids. `ToolPermissions` adds to it, too."""
    _open_calls: dict[str, OpenCall] = field(default_factory=dict)
    _model_response: ModelResponse | None = None
    _is_init_published: bool = False
    _is_summary_next: bool = False
    """Whether the next text is the summary of a compacted context, in the form of a user's message."""

    def assistant_events(self, message: Any) -> Iterator[EventLine]:
        """Events for the blocks of the model's message, or an error event if the model's server reported an error."""
        if message.error:
            yield "agent.error", {"error": result_text(_texts(message.content)) or message.error, "phase": "model"}
            return
        yield from self._track_response(message)
        if message.parent_tool_use_id is None:  # a sub-agent has its own transcript
            self.last_entry_id = message.uuid or self.last_entry_id
        for block in message.content:
            yield from self._block_events(block, message.parent_tool_use_id)

    def user_events(self, message: Any) -> Iterator[EventLine]:
        """Events for messages to the model: tool results, and texts."""
        yield from self.end_response()
        blocks = [] if isinstance(message.content, str) else message.content
        for block in blocks:
            if type(block).__name__ == "ToolResultBlock":
                yield from self._result_events(block, message.tool_use_result, message.parent_tool_use_id)
        text = message.content if isinstance(message.content, str) else result_text(_texts(blocks))
        # A sub-agent's prompt was published with its call. A message with an origin is a notice of the program.
        if text and message.origin is None and message.parent_tool_use_id is None:
            yield self._text_event(text)

    def system_events(self, message: Any) -> Iterator[EventLine]:
        """Events for a notice of the program. Of the `init` notices, one per turn, only the first is published."""
        data: Mapping[str, Any] = message.data
        subtype = message.subtype
        if subtype == "init":
            self.model = data.get("model") or self.model
            if not self._is_init_published:
                self._is_init_published = True
                yield "agent.system_message", {"metadata": {key: data[key] for key in _INIT_FIELDS if key in data}}
            return
        if subtype == "compact_boundary":
            self._is_summary_next = True
            yield _compaction(data.get("compact_metadata"))
        if subtype == "permission_denied":
            self.denials.setdefault(str(data.get("tool_use_id")), "denied")
        if subtype == "task_notification":
            yield from self._background_end_events(message)
        if subtype not in _UNPUBLISHED_SUBTYPES:
            metadata = {key: value for key, value in data.items() if key not in {"type", "uuid", "session_id"}}
            yield "agent.system_message", {"metadata": metadata}

    def _text_event(self, text: str) -> EventLine:
        if self._is_summary_next:
            self._is_summary_next = False
            return "agent.system_message", {"metadata": {"subtype": "compact_summary", "content": text}}
        return "agent.user_message", {"content": text, "content_length": len(text)}

    def end_response(self, stop_reason: str | None = None) -> Iterator[EventLine]:
        """The event for the end of the model's message, if one is open."""
        model_response, self._model_response = self._model_response, None
        if model_response is not None:
            reason = model_response.stop_reason or stop_reason
            fields = {"model": model_response.model, "stop_reason": reason, "block_count": model_response.blocks}
            yield "agent.assistant_message", {**fields, PARENT_FIELD: model_response.parent}

    def _track_response(self, message: Any) -> Iterator[EventLine]:
        if self._model_response is None or self._model_response.id != message.message_id:
            yield from self.end_response()
            self._model_response = ModelResponse(message.message_id, message.model, parent=message.parent_tool_use_id)
        self._model_response.blocks += len(message.content)

    def _block_events(self, block: Any, parent: str | None) -> Iterator[EventLine]:
        kind = type(block).__name__
        if kind == "TextBlock":
            yield "agent.message", {"content": block.text, "content_length": len(block.text), PARENT_FIELD: parent}
        elif kind == "ThinkingBlock":
            thinking_type = "thinking" if parent is None else "subagent"
            yield "agent.thinking", {"content": block.thinking, "thinking_type": thinking_type, PARENT_FIELD: parent}
        elif kind in {"ToolUseBlock", "ServerToolUseBlock"}:
            yield self._call_event(block, parent)
        elif kind in {"ToolResultBlock", "ServerToolResultBlock"}:
            yield from self._result_events(block, None, parent)

    def _call_event(self, block: Any, parent: str | None) -> EventLine:
        """The event for a tool call; sub-agents and skills have their own types."""
        tool, arguments = tool_name(block.name), dict(block.input)
        self._open_calls[block.id] = OpenCall(tool, arguments, self.now(), parent)
        if self._model_response is not None:
            self._model_response.stop_reason = "tool_use"
        if tool == SUBAGENT_TOOL:
            return "agent.subagent_invoked", {
                "tool_use_id": block.id,
                "subagent_type": str(arguments.get("subagent_type") or "general-purpose"),
                "subagent_description": arguments.get("description"),
                "subagent_prompt": arguments.get("prompt"),
                PARENT_FIELD: parent,
            }
        if tool == SKILL_TOOL:
            return "agent.skill_invoked", {"tool_use_id": block.id, "skill_name": _skill_name(arguments)}
        subtype = None if parent is None else "subagent"
        fields = {"tool": tool, "tool_use_id": block.id, "input": arguments, "event_subtype": subtype}
        return "agent.tool_use", {**fields, PARENT_FIELD: parent}

    def _result_events(self, block: Any, response: Any, parent: str | None) -> Iterator[EventLine]:
        """Events for a tool result; none for a sub-agent started in the background, which is still running."""
        if isinstance(response, dict) and (response.get("isAsync") or response.get("status") == "async_launched"):
            return
        call = self._open_calls.pop(block.tool_use_id, None)
        text, is_error = result_text(block.content), bool(getattr(block, "is_error", False))
        denial = self.denials.pop(block.tool_use_id, None)
        result = call_result(None if call is None else call.tool, text, response, is_error=is_error)
        result = CallResult(denial) if denial and is_error else result
        if call is not None:
            yield self._completed_event(block.tool_use_id, call, text if response is None else response, result)
        yield (
            "agent.tool_result",
            {
                "tool_use_id": block.tool_use_id,
                "result": text[:MAX_RESULT_LENGTH],
                "result_truncated": len(text) > MAX_RESULT_LENGTH,
                "result_full_length": len(text),
                "is_error": is_error,
                **result.fields(),
                PARENT_FIELD: parent if call is None else call.parent,
            },
        )

    def _completed_event(self, tool_use_id: str, call: OpenCall, response: Any, result: CallResult) -> EventLine:
        duration_ms = (self.now() - call.started_at) * 1000
        if call.tool == SUBAGENT_TOOL:
            usage = response.get("usage") if isinstance(response, dict) else None
            return _subagent_completed(tool_use_id, call, response, usage, duration_ms)
        if call.tool == SKILL_TOOL:
            return "agent.skill_completed", {"tool_use_id": tool_use_id, "skill_name": _skill_name(call.input)}
        return "agent.tool_completed", {
            "tool": call.tool,
            "tool_use_id": tool_use_id,
            "tool_input": call.input,
            "tool_response": response,
            "duration_ms": duration_ms,
            **result.fields(),
            PARENT_FIELD: call.parent,
        }

    def _background_end_events(self, message: Any) -> Iterator[EventLine]:
        """Events for the end of a sub-agent in the background; none for a repeated notice."""
        call = self._open_calls.get(message.tool_use_id or "")
        if call is not None and call.tool == SUBAGENT_TOOL:
            del self._open_calls[message.tool_use_id]
            duration_ms = (self.now() - call.started_at) * 1000
            yield _subagent_completed(message.tool_use_id, call, message.summary, message.usage, duration_ms)


def _subagent_completed(tool_use_id: str, call: OpenCall, result: Any, usage: Any, duration_ms: float) -> EventLine:
    return "agent.subagent_completed", {
        "tool_use_id": tool_use_id,
        "subagent_type": call.input.get("subagent_type"),
        "subagent_description": call.input.get("description"),
        "subagent_result": result,
        "subagent_usage": dict(usage or {}),
        "subagent_duration_ms": duration_ms,
    }


def _compaction(metadata: Any) -> EventLine:
    fields: Mapping[str, Any] = metadata if isinstance(metadata, Mapping) else {}
    before, after = (count(fields.get(name)) for name in ("pre_tokens", "post_tokens"))
    trigger = _COMPACTION_TRIGGERS.get(str(fields.get("trigger")))
    return "agent.context_compacted", {"trigger": trigger, "tokens_before": before, "tokens_after": after}


def _skill_name(arguments: Mapping[str, Any]) -> str:
    return str(arguments.get("skill") or arguments.get("command") or arguments.get("name") or "")


def _texts(content: Any) -> list[dict[str, str]]:
    return [{"type": "text", "text": block.text} for block in content if type(block).__name__ == "TextBlock"]
