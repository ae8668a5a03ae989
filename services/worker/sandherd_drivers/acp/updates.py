"""From the protocol's session updates to our events. Pure: what is to be said is returned."""

import time
from collections.abc import Callable, Iterator
from typing import Final

from sandherd_drivers.acp.blocks import Json, block_text
from sandherd_drivers.acp.costs import Costs
from sandherd_drivers.acp.tool_calls import Said, ToolCall, ToolCalls

_LONGEST_TEXT: Final = 200_000
"""A text that grows beyond this is said in parts, so that each fits a line."""
_LOST: Final = "what this turn has cost in part is not known: the agent told no total when it took the session up"
_CHUNKS: Final = {
    "agent_message_chunk": "agent.message",
    "agent_thought_chunk": "agent.thinking",
    "user_message_chunk": "agent.user_message",
}
_TOOLS: Final = {"tool_call", "tool_call_update"}
_PLANS: Final = {"plan", "plan_update", "plan_removed"}
_NOTED: Final = {"current_mode_update", "session_info_update"}


class Updates:
    """One session's updates. A text is said when it is whole, a tool call when it begins and when it ends."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, *, resumed: bool = False) -> None:
        self._calls = ToolCalls(clock)
        self._costs = Costs(resumed=resumed)
        self._event = ""
        self._message: str | None = None
        self._parts: list[str] = []
        self._length = 0
        self._blocks = 0
        self._begun = False
        self.last_message: str | None = None
        """The last text that the agent said in this turn."""

    def begin_turn(self) -> Iterator[Said]:
        """A turn begins; what came late belongs before it."""
        yield from self._whole()
        self._begun, self.last_message, self._blocks = True, None, 0

    def take(self, update: Json) -> Iterator[Said]:
        """What an update makes known."""
        kind = update.get("sessionUpdate", "")
        if kind in _CHUNKS:
            yield from self._chunk(_CHUNKS[kind], update)
        elif kind in _TOOLS:
            yield from self._after_text(list(self._calls.take(update)))
        elif kind in _PLANS or kind in _NOTED:
            metadata = {"subtype": kind, **{key: value for key, value in update.items() if key != "sessionUpdate"}}
            yield from self._after_text([("agent.system_message", {"metadata": metadata})])
        elif kind == "usage_update":
            self._costs.take(update.get("cost"), replayed=not self._begun)

    def replayed(self, update: Json) -> None:
        """What an agent tells again of a session that it loads: nothing new but what it has cost so far."""
        if update.get("sessionUpdate") == "usage_update":
            self._costs.take(update.get("cost"), replayed=True)

    def asked_about(self, update: Json) -> tuple[ToolCall, list[Said]]:
        """The tool call that leave is asked for, and what is to be said before."""
        call, said = self._calls.asked_about(update)
        return call, list(self._after_text(said))

    def end_turn(self, stop_reason: str | None, usage: Json | None = None) -> Iterator[Said]:
        """The turn is over: every text is whole, and no tool runs."""
        yield from self.end()
        yield "agent.assistant_message", {"stop_reason": stop_reason, "block_count": self._blocks}
        yield from self.charged(usage)
        if self._costs.lost:
            self._costs.lost = False
            yield "agent.error", {"error": _LOST, "phase": "usage"}

    def charged(self, usage: Json | None = None) -> Iterator[Said]:
        """What has not been charged yet, with the tokens of a turn that has told them."""
        if (charged := self._costs.charge(usage)) is not None:
            yield "agent.usage", charged

    def end(self) -> Iterator[Said]:
        """What is still being said is said, and what still runs ends; also what came after a turn."""
        yield from self._whole()
        yield from self._calls.end_all()

    def _chunk(self, event: str, update: Json) -> Iterator[Said]:
        message = update.get("messageId") or None
        if event != self._event or message != self._message:
            yield from self._whole()
        self._event, self._message = event, message
        self._parts.append(text := block_text(update.get("content") or {}))
        self._length += len(text)
        if self._length > _LONGEST_TEXT:
            yield from self._whole()

    def _after_text(self, said: list[Said]) -> Iterator[Said]:
        if said:
            yield from self._whole()
            self._blocks += sum(name == "agent.tool_use" for name, _ in said)
        yield from said

    def _whole(self) -> Iterator[Said]:
        """The text that was being said, if there is one; a new one begins."""
        text, event = "".join(self._parts), self._event
        self._parts, self._length, self._event = [], 0, ""
        self._blocks += bool(text)
        if text and event == "agent.message":
            self.last_message = text
        for start in range(0, len(text), _LONGEST_TEXT):
            part = text[start : start + _LONGEST_TEXT]
            yield event, {"content": part} | ({} if event == "agent.thinking" else {"content_length": len(part)})
