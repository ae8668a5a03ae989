"""Maps the protocol's session updates, with their costs, to the worker's events, which it returns."""

import time
from collections.abc import Callable, Iterator
from typing import Final

from sandherd_drivers.acp.content_blocks import Json, block_text, parent_call
from sandherd_drivers.acp.tool_calls import EventLine, ToolCall, ToolCalls

_MAX_TEXT_LENGTH: Final = 200_000
"""A longer text is published in parts, so that each fits a line."""
_COST_UNKNOWN: Final = "part of this turn's cost is unknown: the agent reported no total when it resumed the session"
_CHUNK_EVENTS: Final = {
    "agent_message_chunk": "agent.message",
    "agent_thought_chunk": "agent.thinking",
    "user_message_chunk": "agent.user_message",
}
_TOOL_UPDATES: Final = {"tool_call", "tool_call_update"}
_PLAN_UPDATES: Final = {"plan", "plan_update", "plan_removed"}
_NOTICE_UPDATES: Final = {"current_mode_update", "session_info_update"}


class SessionUpdates:
    """One session's updates. A text is published when it is complete, a tool call when it begins and when it ends."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, *, resumed: bool = False) -> None:
        self._calls = ToolCalls(clock)
        self._costs = SessionCosts(resumed=resumed)
        self._text_event = ""
        self._text_message_id: str | None = None
        self._text_parent: str | None = None
        """The id of the call that started the sub-agent which writes the text."""
        self._text_parts: list[str] = []
        self._text_length = 0
        self._block_count = 0
        self._has_turn_begun = False
        self.last_message: str | None = None
        """The agent's last text in this turn."""

    def begin_turn(self) -> Iterator[EventLine]:
        """Begin a turn. A text that is still open belongs to the previous turn, and is completed."""
        yield from self._flush_text()
        self._has_turn_begun, self.last_message, self._block_count = True, None, 0

    def events_for(self, update: Json) -> Iterator[EventLine]:
        """The events for an update."""
        kind = update.get("sessionUpdate", "")
        if kind in _CHUNK_EVENTS:
            yield from self._add_chunk(_CHUNK_EVENTS[kind], update)
        elif kind in _TOOL_UPDATES:
            yield from self._after_text(list(self._calls.events_for(update)))
        elif kind in _PLAN_UPDATES or kind in _NOTICE_UPDATES:
            metadata = {"subtype": kind, **{key: value for key, value in update.items() if key != "sessionUpdate"}}
            yield from self._after_text([("agent.system_message", {"metadata": metadata})])
        elif kind == "usage_update":
            self._costs.record_total(update.get("cost"), replayed=not self._has_turn_begun)

    def record_replayed(self, update: Json) -> None:
        """Record the cost of a repeated update of a loaded session; the rest is ignored."""
        if update.get("sessionUpdate") == "usage_update":
            self._costs.record_total(update.get("cost"), replayed=True)

    def call_for_approval(self, update: Json) -> tuple[ToolCall, list[EventLine]]:
        """The tool call that needs approval, and the events to publish first."""
        call, events = self._calls.call_for_approval(update)
        return call, list(self._after_text(events))

    def end_turn(self, stop_reason: str | None, usage: Json | None = None) -> Iterator[EventLine]:
        """The events for the end of a turn: they complete its texts, end its calls, and report its usage."""
        yield from self.end()
        yield "agent.assistant_message", {"stop_reason": stop_reason, "block_count": self._block_count}
        yield from self.usage_events(usage)
        if self._costs.is_incomplete:
            self._costs.is_incomplete = False
            yield "agent.error", {"error": _COST_UNKNOWN, "phase": "usage"}

    def usage_events(self, usage: Json | None = None) -> Iterator[EventLine]:
        """The event for the cost that is not charged yet, and the tokens of a turn; none if both are zero."""
        if (fields := self._costs.charge(usage)) is not None:
            yield "agent.usage", fields

    def end(self) -> Iterator[EventLine]:
        """Complete open texts and end running tools; also for updates after a turn."""
        yield from self._flush_text()
        yield from self._calls.end_all()

    def _add_chunk(self, event: str, update: Json) -> Iterator[EventLine]:
        author = (event, update.get("messageId") or None, parent_call(update))
        if author != (self._text_event, self._text_message_id, self._text_parent):
            yield from self._flush_text()
        self._text_event, self._text_message_id, self._text_parent = author
        self._text_parts.append(text := block_text(update.get("content") or {}))
        self._text_length += len(text)
        if self._text_length > _MAX_TEXT_LENGTH:
            yield from self._flush_text()

    def _after_text(self, events: list[EventLine]) -> Iterator[EventLine]:
        """These events, after the events that complete the open text."""
        if events:
            yield from self._flush_text()
            self._block_count += sum(name == "agent.tool_use" for name, _ in events)
        yield from events

    def _flush_text(self) -> Iterator[EventLine]:
        """The events for the open text, if any, which is then complete."""
        text, event = "".join(self._text_parts), self._text_event
        self._text_parts, self._text_length, self._text_event = [], 0, ""
        self._block_count += bool(text)
        is_main_message = event == "agent.message" and self._text_parent is None
        self.last_message = text if text and is_main_message else self.last_message
        for start in range(0, len(text), _MAX_TEXT_LENGTH):
            part = text[start : start + _MAX_TEXT_LENGTH]
            yield event, {"content": part, **self._text_facts(event, part)}

    def _text_facts(self, event: str, part: str) -> Json:
        facts: Json = {} if event == "agent.thinking" else {"content_length": len(part)}
        return facts if event == "agent.user_message" else facts | {"parent_tool_use_id": self._text_parent}


_TOKEN_FIELDS: Final = {
    "inputTokens": "input_tokens",
    "outputTokens": "output_tokens",
    "cachedReadTokens": "cache_read_tokens",
    "cachedWriteTokens": "cache_write_tokens",
}


class SessionCosts:
    """The costs of one session, in micro-USD."""

    def __init__(self, *, resumed: bool = False) -> None:
        self._resumed = resumed
        self._last_total: int | None = None if resumed else 0
        """The last reported total. None for a resumed session that has reported none: its earlier cost is not charged.

        Some agents report no total when a session is resumed. Their first total includes a part of the first turn.
        """
        self._uncharged_cost = 0
        self.is_incomplete = False
        """Whether the cost of a part of this turn can't be determined."""

    def record_total(self, cost: Json | None, *, replayed: bool = False) -> None:
        """Record the total cost of the session. If it is below the last one, the agent has restarted from 0.

        `replayed` states that the agent reported it before the first turn. A total in a currency other than USD can't
        be charged, and is ignored.
        """
        if not cost or cost.get("currency") != "USD":
            return
        total = round(float(cost.get("amount") or 0) * 1_000_000)
        if self._last_total is None:
            self.is_incomplete = not replayed
        elif not (self._resumed and replayed):
            self._uncharged_cost += total - self._last_total if total >= self._last_total else total
        self._last_total = total

    def charge(self, usage: Json | None) -> Json | None:
        """The fields of `agent.usage` for a turn that ends with these tokens; None if there is nothing to charge."""
        tokens = {
            field_name: int((usage or {}).get(protocol_name) or 0)
            for protocol_name, field_name in _TOKEN_FIELDS.items()
        }
        fields = tokens | {"cost_micro_usd": self._uncharged_cost}
        self._uncharged_cost = 0
        return fields if any(fields.values()) else None
