"""What an agent says and shows on its way to the worker's voice: what of it counts for its iterations is noted."""

from collections.abc import Callable
from typing import Any, Final

from sandherd.contracts.events import EventData
from sandherd.contracts.events.agent import AgentError, AgentEvent, AgentMessage, AgentTurnCompleted, AgentUsage
from sandherd_worker.harnesses.base import Voice
from sandherd_worker.harnesses.usage import Used

_COST: Final = "cost_micro_usd"
_SDK: Final = "conversation"
"""The phase of what ends a turn of OpenHands."""


class Hearing:
    """A `Voice` for every run of one agent: their turns are counted on, so that no two have the same number.

    `shown` tells whether terminal output counts as the agent's own words.
    """

    def __init__(self, voice: Voice, signal: str | None, *, shown: bool) -> None:
        self._voice, self._signal, self._shown = voice, signal, shown
        self._spent: Callable[[int], None] | None = None
        self._used = Used()
        self._offset = 0
        self._turn = 0
        self._before = 0
        self._end = ""
        self._error: AgentError | None = None
        self._broke = False
        self.signalled = False
        """Whether it has said in this iteration that it is done."""
        self.words: str | None = None
        """The last that it said in this iteration."""

    def listen(self, spent: Callable[[int], None]) -> None:
        """Call this with what all of it has cost, whenever it has cost more."""
        self._spent = spent

    # --- the iteration

    def begin(self) -> None:
        """An iteration begins."""
        self._before = self._used.totals[_COST]
        self._end, self._error, self._broke = "", None, False
        self.signalled, self.words = False, None

    def run_begins(self) -> None:
        """A new run of the agent, which counts its turns from 1."""
        self._offset = self._turn

    @property
    def cost(self) -> int:
        """What this iteration has cost."""
        return self._used.totals[_COST] - self._before

    @property
    def totals(self) -> dict[str, int]:
        """What all of it has used."""
        return dict(self._used.totals)

    @property
    def turns(self) -> int:
        """The number of the last turn."""
        return self._turn

    @property
    def fault(self) -> str | None:
        """Why the last turn failed, if the agent has said that it did."""
        return self._error.error if self._error is not None and self._broke else None

    def turn(self, number: int) -> int:
        """A run's turn, by its number among all."""
        self._turn = max(self._turn, number + self._offset)
        return number + self._offset

    # --- the voice

    async def say(self, data: EventData) -> bool:
        """Note what counts, and say it."""
        self._used.count(data)
        self._note(data)
        if isinstance(data, AgentEvent) and data.turn:
            data = data.model_copy(update={"turn": self.turn(data.turn)})
        said = await self._voice.say(data)
        if isinstance(data, AgentUsage) and self._spent is not None:
            self._spent(self._used.totals[_COST])
        return said

    async def show(self, text: str) -> None:
        """Look for the signal in it, and show it."""
        if self._shown and self._signal is not None:
            self._look(self._end + text)
            self._end = (self._end + text)[-len(self._signal) :]
        await self._voice.show(text)

    def _note(self, data: Any) -> None:
        match data:
            case AgentMessage():
                self.words = data.content
                self._look(data.content)
            case AgentError():
                self._error = data
            case AgentTurnCompleted(stop_reason=reason):
                # So the drivers say that a turn failed, and not that something went wrong within it.
                self._broke = self._error is not None and (reason == "error" or self._error.phase in {reason, _SDK})

    def _look(self, text: str) -> None:
        if self._signal is not None and self._signal in text:
            self.signalled = True
