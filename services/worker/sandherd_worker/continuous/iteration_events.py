"""Forwards an agent's events and output to the worker's sink, and records the facts that end an iteration."""

from collections.abc import Callable
from typing import Any, Final

from sandherd.contracts.events import EventData
from sandherd.contracts.events.agent import AgentError, AgentEvent, AgentTurnCompleted, AgentTurnStarted, AgentUsage
from sandherd.contracts.events.conversation import AgentMessage
from sandherd_worker.harnesses.base import EventSink, UsageTotals

_COST: Final = "cost_micro_usd"
_OPENHANDS_PHASE: Final = "conversation"
"""The phase of an error that ends a turn of OpenHands."""


class IterationEvents:
    """An `EventSink` for all runs of one agent. Turn numbers continue from run to run, so that each is unique.

    `signal`: the text with which the agent signals that its work is complete. `search_output`: whether the terminal
    output is searched for it, too, because it contains the agent's messages.
    """

    def __init__(self, sink: EventSink, signal: str | None, *, search_output: bool) -> None:
        self._sink, self._signal, self._search_output = sink, signal, search_output
        self._on_cost: Callable[[int], None] | None = None
        self._usage = UsageTotals()
        self._turn_offset = 0
        """The number of turns before the current run."""
        self._turn = 0
        self._cost_before = 0
        self._output_tail = ""
        """The end of the output: it may contain the beginning of the completion signal."""
        self._error: AgentError | None = None
        self._turn_failed = False
        self._runs = 0
        self.signalled = False
        """Whether the agent has sent the completion signal in this iteration."""
        self.last_message: str | None = None
        """The agent's last message in this iteration."""

    def on_cost(self, notify: Callable[[int], None]) -> None:
        """Call `notify` with the total cost, in millionths of a US dollar, after each event with the agent's usage."""
        self._on_cost = notify

    # --- the iteration

    def start_iteration(self) -> None:
        """Start an iteration."""
        self._cost_before = self._usage.totals[_COST]
        self._output_tail, self._error, self._turn_failed = "", None, False
        self.signalled, self.last_message = False, None

    def start_run(self) -> None:
        """Start a new run of the agent, which counts its turns from 1."""
        self._turn_offset = self._turn
        self._runs += 1

    @property
    def cost(self) -> int:
        """The cost of this iteration, in millionths of a US dollar."""
        return self._usage.totals[_COST] - self._cost_before

    @property
    def totals(self) -> dict[str, int]:
        """The usage of all iterations."""
        return dict(self._usage.totals)

    @property
    def turns(self) -> int:
        """The number of the last turn."""
        return self._turn

    @property
    def fault(self) -> str | None:
        """Why the last turn failed; None if the agent has not reported that it failed."""
        return self._error.error if self._error is not None and self._turn_failed else None

    def turn(self, number: int) -> int:
        """Convert a turn number of the current run to the number that counts the turns of all runs."""
        self._turn = max(self._turn, number + self._turn_offset)
        return number + self._turn_offset

    # --- the event sink

    async def publish(self, data: EventData) -> bool:
        """Publish the event, and record its cost, its message or its error."""
        self._usage.count(data)
        self._record(data)
        if isinstance(data, AgentEvent) and data.turn:
            data = data.model_copy(update={"turn": self.turn(data.turn), **self._origin(data)})
        published = await self._sink.publish(data)
        if isinstance(data, AgentUsage) and self._on_cost is not None:
            self._on_cost(self._usage.totals[_COST])
        return published

    def _origin(self, data: AgentEvent) -> dict[str, str]:
        """The origin `iteration` for the first turn of a later run, whose prompt is the task's text with feedback."""
        is_prompt = isinstance(data, AgentTurnStarted) and data.origin == "task"
        return {"origin": "iteration"} if is_prompt and self._runs > 1 else {}

    async def show(self, text: str) -> None:
        """Search the output for the completion signal, and publish it."""
        if self._search_output and self._signal is not None:
            self._find_signal(self._output_tail + text)
            self._output_tail = (self._output_tail + text)[-len(self._signal) :]
        await self._sink.show(text)

    def _record(self, data: Any) -> None:
        match data:
            case AgentMessage():
                self.last_message = data.content
                self._find_signal(data.content)
            case AgentError():
                self._error = data
            case AgentTurnCompleted(stop_reason=reason):
                # Drivers report a failed turn in one of these ways. After other errors a turn has continued.
                self._turn_failed = self._error is not None and (
                    reason == "error" or self._error.phase in {reason, _OPENHANDS_PHASE}
                )

    def _find_signal(self, text: str) -> None:
        if self._signal is not None and self._signal in text:
            self.signalled = True
