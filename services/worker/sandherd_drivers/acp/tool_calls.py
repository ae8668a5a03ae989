"""An agent's tool calls: each gets a start and an end, even if the agent omits one."""

from collections.abc import Callable, Iterator
from typing import Final

from sandherd_drivers.acp.content_blocks import MAX_RESULT_LENGTH, Json, parent_call, tool_text, vendor_text
from sandherd_drivers.call_results import CallResult, exit_status, result_of_status

EventLine = tuple[str, Json]
"""The type of an event, and its fields except the turn."""

_FINAL_STATUSES: Final = {"completed", "failed"}
_MAX_NAME_LENGTH: Final = 200
_MAX_TITLE_LENGTH: Final = 2_000
"""Some agents use a whole script as the title of the call that runs it."""
_EXIT_STATUS_FIELDS: Final = ("exit_code", "exitCode")
_TURN_ENDED_FIRST: Final = "the turn ended before the tool did"


class ToolCall:
    """One call, with the fields known so far."""

    def __init__(self, id: str, now: float) -> None:
        self.id = id
        self.is_announced = False
        self.denial: str | None = None
        """The outcome of a call that was denied; None for a call that may be executed."""
        self._started_at = now
        self._fields: Json = {}

    def merge(self, update: Json) -> None:
        """Merge the fields of an update; missing fields stay unchanged."""
        meta = {**(self._fields.get("_meta") or {}), **(update.get("_meta") or {})}
        self._fields |= update
        self._fields["_meta"] = meta

    @property
    def has_ended(self) -> bool:
        """Whether the call has ended."""
        return self._fields.get("status") in _FINAL_STATUSES

    @property
    def is_awaiting_input(self) -> bool:
        """Whether the model is still writing the tool's input."""
        return self._fields.get("status", "pending") == "pending" and self._fields.get("rawInput") == {}

    @property
    def title(self) -> str | None:
        """The title that the agent shows to users."""
        return (self._fields.get("title") or "")[:_MAX_TITLE_LENGTH] or None

    @property
    def tool(self) -> str:
        """The tool's name. The protocol has none: the agent's own name, else the kind of tool, else the title."""
        kind = self._fields.get("kind")
        name = vendor_text(self._fields, "toolName") or (kind if kind != "other" else None) or self.title or "other"
        return name[:_MAX_NAME_LENGTH]

    @property
    def input(self) -> Json:
        """The tool's input; if the agent reports none, the title and the paths that it shows to users."""
        raw_input = self._fields.get("rawInput")
        if isinstance(raw_input, dict) and raw_input:
            return raw_input
        fields = {"input": raw_input or None, "title": self.title, "paths": self.paths}
        return {name: value for name, value in fields.items() if value}

    def begin(self) -> EventLine:
        """The event for its start."""
        self.is_announced = True
        fields = {"tool": self.tool, "tool_use_id": self.id, "input": self.input}
        return "agent.tool_use", fields | {"parent_tool_use_id": parent_call(self._fields)}

    def end(self, now: float) -> Iterator[EventLine]:
        """The events for its end, even if the agent reported none."""
        text, facts = tool_text(self._fields) if self.has_ended else _TURN_ENDED_FIRST, self._result().fields()
        facts["parent_tool_use_id"] = parent_call(self._fields)
        if self.has_ended:
            raw = self._fields.get("rawOutput")
            completed = {"tool": self.tool, "tool_input": self.input, "tool_response": text if raw is None else raw}
            timing = {"tool_use_id": self.id, "duration_ms": self._duration_ms(now)}
            yield "agent.tool_completed", completed | timing | facts
        yield (
            "agent.tool_result",
            {
                "tool_use_id": self.id,
                "result": text[:MAX_RESULT_LENGTH],
                "result_truncated": len(text) > MAX_RESULT_LENGTH,
                "result_full_length": len(text),
                "is_error": self._fields.get("status") != "completed",
                **facts,
            },
        )

    def _result(self) -> CallResult:
        """How the call ended. A completed call has failed if its command has an exit status other than 0."""
        status = self._fields.get("status")
        if self.denial is not None and status != "completed":
            return CallResult(self.denial)
        if not self.has_ended:
            return CallResult("cancelled")
        code = _exit_status(self._fields)
        if status == "completed":
            return CallResult("ok") if code is None else result_of_status(code)
        return CallResult("failed", code)

    def _duration_ms(self, now: float) -> int:
        return max(0, round((now - self._started_at) * 1000))

    @property
    def paths(self) -> list[str]:
        """The files that the call names."""
        return [str(location.get("path")) for location in self._fields.get("locations") or ()]


def _exit_status(fields: Json) -> int | None:
    """The exit status of a command. The protocol has no field for it, so the fields that agents use are searched."""
    containers = (fields.get("rawOutput"), (fields.get("_meta") or {}).get("terminal_exit"))
    values = [
        container.get(name) for container in containers if isinstance(container, dict) for name in _EXIT_STATUS_FIELDS
    ]
    return next((status for status in map(exit_status, values) if status is not None), None)


class ToolCalls:
    """The calls of a session: open and ended ones."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._open_calls: dict[str, ToolCall] = {}
        self._ended_ids: set[str] = set()

    def events_for(self, update: Json) -> Iterator[EventLine]:
        """The events for an update of a call; none for a call that has ended."""
        call = self._update(update)
        if call is None or (call.is_awaiting_input and not call.is_announced):
            return
        if not call.is_announced:
            yield call.begin()
        if call.has_ended:
            yield from self._end(call)

    def call_for_approval(self, update: Json) -> tuple[ToolCall, list[EventLine]]:
        """The call that needs approval, and the events to publish first, so that a user sees what is requested."""
        call = self._update(update) or self._ended_call(update)
        return call, [] if call.is_announced or call.id in self._ended_ids else [call.begin()]

    def end_all(self) -> Iterator[EventLine]:
        """End all open calls, because the turn has ended."""
        for call in list(self._open_calls.values()):
            if not call.is_announced:
                yield call.begin()
            yield from self._end(call)

    def _update(self, update: Json) -> ToolCall | None:
        """The open call with this update merged into it; None if the call has ended."""
        id = str(update["toolCallId"])
        if id in self._ended_ids:
            return None
        call = self._open_calls.setdefault(id, ToolCall(id, self._clock()))
        call.merge(update)
        return call

    def _ended_call(self, update: Json) -> ToolCall:
        """A description of a call that has ended and is named in a later update; the call is not reopened."""
        call = ToolCall(str(update["toolCallId"]), self._clock())
        call.merge(update)
        return call

    def _end(self, call: ToolCall) -> Iterator[EventLine]:
        del self._open_calls[call.id]
        self._ended_ids.add(call.id)
        yield from call.end(self._clock())
