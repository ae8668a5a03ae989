"""Passes an agent's events and output on to the worker's sink, and records what matters for its iterations."""

from collections.abc import Callable
from typing import Any, Final

from sandherd.contracts.events import EventData
from sandherd.contracts.events.agent import AgentError, AgentEvent, AgentTurnCompleted, AgentTurnStarted, AgentUsage
from sandherd.contracts.events.conversation import AgentMessage
from sandherd_worker.harnesses.base import EventSink, UsageTotals

_COST: Final = "cost_micro_usd"
_SDK: Final = "conversation"
"""The phase of an error that ends a turn of OpenHands."""


class IterationEvents:
    """An `EventSink` for all runs of one agent: turn numbers continue from run to run, so that each is unique.

    `shown` is whether terminal output counts as the agent's messages.
    """

    def __init__(self, sink: EventSink, signal: str | None, *, shown: bool) -> None:
        self._sink, self._signal, self._shown = sink, signal, shown
        self._spent: Callable[[int], None] | None = None
        self._used = UsageTotals()
        self._offset = 0
        self._turn = 0
        self._before = 0
        self._end = ""
        self._error: AgentError | None = None
        self._broke = False
        self._runs = 0
        self.signalled = False
        """Whether the agent has sent the completion signal in this iteration."""
        self.last_message: str | None = None
        """The agent's last message in this iteration."""

    def listen(self, spent: Callable[[int], None]) -> None:
        """Register a function that is called with the total cost after each event of usage."""
        self._spent = spent

    # --- the iteration

    def start_iteration(self) -> None:
        """Start an iteration."""
        self._before = self._used.totals[_COST]
        self._end, self._error, self._broke = "", None, False
        self.signalled, self.last_message = False, None

    def run_begins(self) -> None:
        """Start a new run of the agent, which counts its turns from 1."""
        self._offset = self._turn
        self._runs += 1

    @property
    def cost(self) -> int:
        """The cost of this iteration, in millionths of a US dollar."""
        return self._used.totals[_COST] - self._before

    @property
    def totals(self) -> dict[str, int]:
        """The usage of all iterations."""
        return dict(self._used.totals)

    @property
    def turns(self) -> int:
        """The number of the last turn."""
        return self._turn

    @property
    def fault(self) -> str | None:
        """Why the last turn failed, if the agent has reported that it did."""
        return self._error.error if self._error is not None and self._broke else None

    def turn(self, number: int) -> int:
        """Converts a run's turn number to the number over all runs."""
        self._turn = max(self._turn, number + self._offset)
        return number + self._offset

    # --- the event sink

    async def publish(self, data: EventData) -> bool:
        """Record what matters, and publish the event."""
        self._used.count(data)
        self._note(data)
        if isinstance(data, AgentEvent) and data.turn:
            data = data.model_copy(update={"turn": self.turn(data.turn), **self._origin(data)})
        published = await self._sink.publish(data)
        if isinstance(data, AgentUsage) and self._spent is not None:
            self._spent(self._used.totals[_COST])
        return published

    def _origin(self, data: AgentEvent) -> dict[str, str]:
        """In a later run, the first turn has the origin `iteration`: its prompt is the task's text with feedback."""
        is_prompt = isinstance(data, AgentTurnStarted) and data.origin == "task"
        return {"origin": "iteration"} if is_prompt and self._runs > 1 else {}

    async def show(self, text: str) -> None:
        """Search the output for the completion signal, and publish it."""
        if self._shown and self._signal is not None:
            self._find_signal(self._end + text)
            self._end = (self._end + text)[-len(self._signal) :]
        await self._sink.show(text)

    def _note(self, data: Any) -> None:
        match data:
            case AgentMessage():
                self.last_message = data.content
                self._find_signal(data.content)
            case AgentError():
                self._error = data
            case AgentTurnCompleted(stop_reason=reason):
                # This is how drivers report a failed turn, as opposed to an error within a turn.
                self._broke = self._error is not None and (reason == "error" or self._error.phase in {reason, _SDK})

    def _find_signal(self, text: str) -> None:
        if self._signal is not None and self._signal in text:
            self.signalled = True
