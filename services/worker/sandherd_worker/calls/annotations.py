"""Adds facts to the events of tool calls, found in their inputs and results: checks and outages."""

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, Final

from sandherd.contracts.events import EventData
from sandherd.contracts.events.call_facts import CallEnd
from sandherd.contracts.events.tools import AgentToolCompleted, AgentToolResult, AgentToolUse
from sandherd_worker.calls.checks import WorkCheck, check_of
from sandherd_worker.calls.outages import is_outage, may_be_outage

MAX_CALLS: Final = 1000
"""Maximum number of calls that are tracked. The end of an older call gets no facts."""


@dataclass
class _Call:
    check: WorkCheck | None
    may_be_outage: bool
    is_outage: bool = False


class CallAnnotations:
    """The calls of one sandbox. Call `annotate` for each event, in order."""

    def __init__(self) -> None:
        self._calls: OrderedDict[str, _Call] = OrderedDict()

    def annotate(self, data: EventData) -> EventData:
        """The event with facts about its tool call; unchanged if it is not an event of a tool call."""
        if isinstance(data, AgentToolUse):
            call = self._remember(data)
            return data.model_copy(update={"check": None if call.check is None else call.check.kind})
        if isinstance(data, AgentToolResult):
            return self._end(data, data.tool_use_id, data.result)
        if isinstance(data, AgentToolCompleted):
            return self._end(data, data.tool_use_id, data.tool_response)
        return data

    def _remember(self, data: AgentToolUse) -> _Call:
        call = self._calls[data.tool_use_id] = _Call(check_of(data.input), may_be_outage(data.tool, data.input))
        if len(self._calls) > MAX_CALLS:
            self._calls.popitem(last=False)
        return call

    def _end(self, data: CallEnd, tool_use_id: str | None, response: Any) -> EventData:
        call = self._calls.get(tool_use_id or "", _Call(None, may_be_outage=False))
        if data.outcome == "failed" and call.may_be_outage:
            # A call ends with two events. If the first one is an outage, so is the second one.
            call.is_outage = call.is_outage or is_outage(str(response))
        passed = None if call.check is None else call.check.passed(data.outcome, data.exit_code)
        check = None if call.check is None else call.check.kind
        outcome = "outage" if call.is_outage and data.outcome == "failed" else data.outcome
        return data.model_copy(update={"check": check, "check_passed": passed, "outcome": outcome})
