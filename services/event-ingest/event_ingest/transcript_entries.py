"""Events of an agent as entries of a transcript. Pure."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from sandherd.contracts.events import EVENTS
from sandherd.contracts.events.agent import AgentCompleted, AgentError, AgentFailed, AgentStreamError
from sandherd.contracts.events.conversation import AgentMessage, AgentMessageInjected, AgentThinking, AgentUserMessage
from sandherd.contracts.events.iteration import AgentIterationFailed
from sandherd.contracts.events.tools import AgentFileEdited, AgentToolResult, AgentToolUse
from sandherd.contracts.requests.history import StoredEvent
from sandherd.contracts.requests.transcript import MAX_TEXT, TranscriptEntry, TranscriptKind

Data = Mapping[str, Any]


@dataclass(frozen=True)
class _Rendering:
    """How events of one type are shown: the kind of their entry, its text, and its title."""

    kind: TranscriptKind
    text: Callable[[Data], str]
    title: Callable[[Data], str | None] = lambda _data: None


def _field(name: str) -> Callable[[Data], str]:
    return lambda data: str(data.get(name) or "")


def _arguments(data: Data) -> str:
    """The argument `command` of a call; if it has none, all arguments as JSON."""
    arguments = data.get("input") or {}
    command = arguments.get("command") if isinstance(arguments, dict) else None
    return command if isinstance(command, str) else json.dumps(arguments, ensure_ascii=False)


def _change(data: Data) -> str:
    diff = data.get("full_diff") or data.get("diff_preview") or ""
    return f"{data.get('change_type')} +{data.get('lines_added', 0)} −{data.get('lines_removed', 0)}\n{diff}"


_RENDERINGS: Final[Mapping[str, _Rendering]] = MappingProxyType(
    {
        AgentUserMessage.type: _Rendering("input", _field("content")),
        AgentMessageInjected.type: _Rendering("input", _field("content"), lambda data: data.get("sender_id")),
        AgentThinking.type: _Rendering("thought", _field("content")),
        AgentMessage.type: _Rendering("message", _field("content")),
        AgentToolUse.type: _Rendering("call", _arguments, _field("tool")),
        AgentToolResult.type: _Rendering("result", _field("result")),
        AgentFileEdited.type: _Rendering("edit", _change, _field("file_path")),
        AgentError.type: _Rendering("error", _field("error")),
        AgentStreamError.type: _Rendering("error", _field("error")),
        AgentIterationFailed.type: _Rendering("error", _field("error")),
        AgentCompleted.type: _Rendering("end", _field("final_output")),
        AgentFailed.type: _Rendering("end", _field("error")),
    }
)


def transcript_types(*, thoughts: bool, results: bool) -> list[str]:
    """The types of events that have an entry in a transcript with or without thoughts and results."""
    hidden = {kind for kind, shown in (("thought", thoughts), ("result", results)) if not shown}
    return [name for name, rendering in _RENDERINGS.items() if rendering.kind not in hidden]


def transcript_entry(event: StoredEvent) -> TranscriptEntry:
    """The entry of an event that has one."""
    envelope = event.envelope
    data, rendering = envelope.get("data") or {}, _RENDERINGS[envelope["type"]]
    text = rendering.text(data)
    return TranscriptEntry(
        stream_sequence=event.stream_sequence,
        time=envelope["time"],
        kind=rendering.kind,
        turn=data.get("turn") or 0,
        text=text[:MAX_TEXT],
        cut=len(text) > MAX_TEXT or "dataomitted" in envelope,
        title=rendering.title(data),
        tool_use_id=data.get("tool_use_id"),
        is_error=EVENTS[envelope["type"]].counts_as_error or bool(data.get("is_error")),
    )
