"""Derives model calls from an agent's events: an SDK reports the model's responses, but not its requests.

The model is called when a turn begins, when it gets a message, and when all its tools have returned; the call ends with
the first text, thought or tool call that results. A running sub-agent counts as one tool call, with all its requests.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, Final
from uuid import uuid4

EventLine = tuple[str, dict[str, Any]]

_TOOL_STARTS: Final = frozenset({"agent.tool_use", "agent.subagent_invoked", "agent.skill_invoked"})
_TOOL_ENDS: Final = frozenset(
    {"agent.tool_result", "agent.tool_completed", "agent.subagent_completed", "agent.skill_completed"}
)
_RESPONSES: Final = _TOOL_STARTS | {"agent.assistant_message", "agent.message", "agent.thinking", "agent.error"}
_TURN_ENDS: Final = frozenset({"agent.turn_completed", "agent.stream_error"})


@dataclass
class ModelCalls:
    """The state of one agent's model calls; call its methods for each event, in order."""

    now: Callable[[], float] = monotonic
    _open_tools: set[str] = field(default_factory=set)
    _turn: int | None = None
    """The running turn, if any."""
    _open_call: str | None = None
    _call_started_at: float = 0.0

    def events_before(self, type: str) -> list[EventLine]:
        """The events to publish before this one: the end of a model call."""
        return self.end_call() if type in _RESPONSES | _TURN_ENDS else []

    def events_after(self, type: str, data: dict[str, Any]) -> list[EventLine]:
        """The events to publish after this one: the start of a model call."""
        if type == "agent.turn_started":
            self._open_tools.clear()
            self._turn = data.get("turn", 0)
        elif type in _TURN_ENDS:
            self._turn = None
        elif type in _TOOL_STARTS:
            self._open_tools.add(str(data.get("tool_use_id")))
        elif type in _TOOL_ENDS:
            self._open_tools.discard(str(data.get("tool_use_id")))
        if type not in _TOOL_ENDS | {"agent.turn_started", "agent.user_message"}:
            return []
        return self._start_call()

    def end_call(self) -> list[EventLine]:
        """End the open call, if any: the model has responded, or its response is no longer awaited."""
        call_id, self._open_call = self._open_call, None
        if call_id is None:
            return []
        duration_ms = (self.now() - self._call_started_at) * 1000
        return [
            ("agent.model_call_completed", {"turn": self._turn or 0, "call_id": call_id, "duration_ms": duration_ms})
        ]

    def _start_call(self) -> list[EventLine]:
        if self._turn is None or self._open_tools or self._open_call is not None:
            return []
        self._open_call, self._call_started_at = uuid4().hex, self.now()
        return [("agent.model_call_started", {"turn": self._turn, "call_id": self._open_call})]
