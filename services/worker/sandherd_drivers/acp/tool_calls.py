"""An agent's tool calls: each has a begin and an end, whatever the agent leaves out."""

from collections.abc import Callable, Iterator
from typing import Final

from sandherd_drivers.acp.blocks import LONGEST_RESULT, Json, tool_text

Said = tuple[str, Json]
"""The name of an event, and its fields but for the turn."""

_OVER: Final = {"completed", "failed"}
_LONGEST_NAME: Final = 200
_LONGEST_TITLE: Final = 2_000
"""Some agents show a whole script as the title of the call that runs it."""
_UNENDED: Final = "the turn ended before the tool did"


class ToolCall:
    """One call, as it is known by now."""

    def __init__(self, id: str, now: float) -> None:
        self.id = id
        self.announced = False
        self._begun = now
        self._known: Json = {}

    def learn(self, update: Json) -> None:
        """Take in what an update says of it; what it leaves out stays as it was."""
        meta = {**(self._known.get("_meta") or {}), **(update.get("_meta") or {})}
        self._known |= update
        self._known["_meta"] = meta

    @property
    def over(self) -> bool:
        """Whether it has ended."""
        return self._known.get("status") in _OVER

    @property
    def awaits_input(self) -> bool:
        """Whether the model is still writing what the tool is to be given."""
        return self._known.get("status", "pending") == "pending" and self._known.get("rawInput") == {}

    @property
    def title(self) -> str | None:
        """What the agent calls it for people."""
        return (self._known.get("title") or "")[:_LONGEST_TITLE] or None

    @property
    def tool(self) -> str:
        """The protocol has no names of tools: the agent's own if it tells it, the kind of tool, or what it shows."""
        kind = self._known.get("kind")
        name = _own_name(self._known["_meta"]) or (kind if kind != "other" else None) or self.title or "other"
        return name[:_LONGEST_NAME]

    @property
    def input(self) -> Json:
        """What the tool is given; without that, what people are shown of it."""
        given = self._known.get("rawInput")
        if isinstance(given, dict) and given:
            return given
        shown = {"input": given or None, "title": self.title, "paths": self.paths}
        return {name: value for name, value in shown.items() if value}

    def begin(self) -> Said:
        """The event that it began."""
        self.announced = True
        return "agent.tool_use", {"tool": self.tool, "tool_use_id": self.id, "input": self.input}

    def end(self, now: float) -> Iterator[Said]:
        """The events that it has ended, or that nobody will hear of its end."""
        text = tool_text(self._known) if self.over else _UNENDED
        if self.over:
            raw = self._known.get("rawOutput")
            completed = {"tool": self.tool, "tool_input": self.input, "tool_response": text if raw is None else raw}
            yield "agent.tool_completed", completed | {"tool_use_id": self.id, "duration_ms": self._took(now)}
        yield (
            "agent.tool_result",
            {
                "tool_use_id": self.id,
                "result": text[:LONGEST_RESULT],
                "result_truncated": len(text) > LONGEST_RESULT,
                "result_full_length": len(text),
                "is_error": self._known.get("status") != "completed",
            },
        )

    def _took(self, now: float) -> int:
        return max(0, round((now - self._begun) * 1000))

    @property
    def paths(self) -> list[str]:
        """The files that it is about."""
        return [str(place.get("path")) for place in self._known.get("locations") or ()]


def _own_name(meta: Json) -> str | None:
    for vendor in meta.values():
        if isinstance(vendor, dict) and isinstance(name := vendor.get("toolName"), str) and name:
            return name
    return None


class ToolCalls:
    """The calls of a session: which run, and which have ended."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._open: dict[str, ToolCall] = {}
        self._ended: set[str] = set()

    def take(self, update: Json) -> Iterator[Said]:
        """What an update of a call makes known. One of a call that has ended says nothing."""
        call = self._learn(update)
        if call is None or (call.awaits_input and not call.announced):
            return
        if not call.announced:
            yield call.begin()
        if call.over:
            yield from self._end(call)

    def asked_about(self, update: Json) -> tuple[ToolCall, list[Said]]:
        """The call that leave is asked for, and what is to be said of it first: a person is to see what for."""
        call = self._learn(update) or self._stranger(update)
        return call, [] if call.announced or call.id in self._ended else [call.begin()]

    def end_all(self) -> Iterator[Said]:
        """The turn is over: what still runs ends, as far as anybody will know."""
        for call in list(self._open.values()):
            if not call.announced:
                yield call.begin()
            yield from self._end(call)

    def _learn(self, update: Json) -> ToolCall | None:
        id = str(update["toolCallId"])
        if id in self._ended:
            return None
        call = self._open.setdefault(id, ToolCall(id, self._clock()))
        call.learn(update)
        return call

    def _stranger(self, update: Json) -> ToolCall:
        """A call that has ended, asked about again: described, but not opened anew."""
        call = ToolCall(str(update["toolCallId"]), self._clock())
        call.learn(update)
        return call

    def _end(self, call: ToolCall) -> Iterator[Said]:
        del self._open[call.id]
        self._ended.add(call.id)
        yield from call.end(self._clock())
