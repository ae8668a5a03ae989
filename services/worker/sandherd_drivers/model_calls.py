"""Calls of the model, as far as what an agent says shows them: an SDK tells of an answer, and of no question.

The model is asked when a turn begins, when it is told something, and when its tools have all answered; it has answered
with the first word, thought or call that comes of it. A sub-agent that runs is a call of a tool, whatever it asks.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, Final
from uuid import uuid4

Line = tuple[str, dict[str, Any]]

_OPENS: Final = frozenset({"agent.tool_use", "agent.subagent_invoked", "agent.skill_invoked"})
_CLOSES: Final = frozenset(
    {"agent.tool_result", "agent.tool_completed", "agent.subagent_completed", "agent.skill_completed"}
)
_ANSWERS: Final = _OPENS | {"agent.assistant_message", "agent.message", "agent.thinking", "agent.error"}
_ENDS: Final = frozenset({"agent.turn_completed", "agent.stream_error"})


@dataclass
class ModelCalls:
    """Follows what is said, in its order."""

    now: Callable[[], float] = monotonic
    _tools: set[str] = field(default_factory=set)
    _turn: int | None = None
    """The turn that runs."""
    _call: str | None = None
    _began: float = 0.0

    def before(self, type: str) -> list[Line]:
        """What is to be said before this event: that the model has answered."""
        return self.ended() if type in _ANSWERS | _ENDS else []

    def after(self, type: str, data: dict[str, Any]) -> list[Line]:
        """What is to be said after it: that the model is asked."""
        if type == "agent.turn_started":
            self._tools.clear()
            self._turn = data.get("turn", 0)
        elif type in _ENDS:
            self._turn = None
        elif type in _OPENS:
            self._tools.add(str(data.get("tool_use_id")))
        elif type in _CLOSES:
            self._tools.discard(str(data.get("tool_use_id")))
        if type not in _CLOSES | {"agent.turn_started", "agent.user_message"}:
            return []
        return self._asked()

    def ended(self) -> list[Line]:
        """That the model has answered, or nobody waits for its answer any more."""
        call, self._call = self._call, None
        if call is None:
            return []
        took = (self.now() - self._began) * 1000
        return [("agent.model_call_completed", {"turn": self._turn or 0, "call_id": call, "duration_ms": took})]

    def _asked(self) -> list[Line]:
        if self._turn is None or self._tools or self._call is not None:
            return []
        self._call, self._began = uuid4().hex, self.now()
        return [("agent.model_call_started", {"turn": self._turn, "call_id": self._call})]
