"""Hearing the agent: each message of the SDK becomes events, and shows where the agent is in its turns."""

import asyncio
import sys
from collections.abc import Callable, Coroutine, Iterable
from pathlib import Path
from typing import Any, Final

from sandherd_drivers.claude.outcomes import Outcome, judge
from sandherd_drivers.claude.said import Line, Telling
from sandherd_drivers.claude.spending import Spending
from sandherd_drivers.claude.tool_results import printed
from sandherd_drivers.claude.transcripts import WRITING, find, written
from sandherd_drivers.wire import Wire

_PREVIEW: Final = 500
_SETTLING: Final = 2.0
"""How long a message that was handed over may go unmentioned while the agent has nothing to do, in seconds.

It begins a turn at once, or never; and whoever asks for the receipt asks again after five seconds.
"""
_PASSED_OVER: Final = "the agent has passed it over"
_TURNED_AWAY: Final = "a hook has turned it away"


class Hearing:
    """One session, as it is heard. It has at most one turn at a time; some begin without a message of ours."""

    def __init__(self, wire: Wire, session: str, config: Path, spending: Spending) -> None:
        self.session = session
        self.turn = 0
        self.idle = asyncio.Event()
        self.goes_on = asyncio.Event()
        """Not set while turns are being stopped; what is given to the agent then would be stopped with them."""
        self.goes_on.set()
        self.ending = False
        """Set when all turns that still begin are to be stopped: with a message that was handed over comes one."""
        self._wire = wire
        self._config = config
        self._spending = spending
        self._telling = Telling()
        self._waiting: dict[str, tuple[str | None, str]] = {}
        self._refused: dict[str, str] = {}
        self._has: set[str] = set()
        """Whether the worker knows where the transcript is, so that it can keep it if we are killed."""
        self._turned_away = False
        """Whether a hook has kept from the model what the turn began with; its result names that all the same."""
        self._outcome: Outcome | None = None
        self._finished = False
        self._settling: asyncio.Task[None] | None = None
        self._stop_turn: Callable[[], Coroutine[Any, Any, None]] | None = None
        self._stopping: asyncio.Task[None] | None = None

    @property
    def busy(self) -> bool:
        """Whether there is a turn, or something that will become one."""
        return bool(self._waiting) or not self.idle.is_set()

    def expect(self, uuid: str, message: str | None, content: str) -> None:
        """This is about to be handed to the agent. The task is no message, so it has no receipt."""
        self._waiting[uuid] = (message, content)

    def stop(self, stop_turn: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Stop also the turns that are still to come of what was handed over."""
        self._stop_turn = stop_turn
        self.goes_on.clear()

    def awaits(self, uuid: str) -> bool:
        """Whether the agent was handed this and hasn't taken it yet."""
        return uuid in self._waiting

    def wants(self, message: str) -> bool:
        """Whether the agent is to be handed this: neither is it on its way to the agent, nor does the agent have it.

        One that it has is acknowledged again; one that it passed over it does not have.
        """
        if message in self._has:
            self._wire.taken(message)
        return message not in self._has and all(message != waiting for waiting, _ in self._waiting.values())

    def refuse_waiting(self, reason: str) -> None:
        """What the agent has not taken by now it will not take."""
        for uuid in list(self._waiting):
            self.refuse(uuid, reason)

    def refuse(self, uuid: str, reason: str) -> None:
        """The agent will not take this, if it still waits."""
        message, _ = self._waiting.pop(uuid, (None, ""))
        if message is not None:
            self._refused[uuid] = message
            self._wire.refused(message, reason)

    async def hear(self, message: Any) -> None:
        """One message of the SDK."""
        kind = type(message).__name__
        if kind == "AssistantMessage":
            if not message.error:
                self._spending.answered(message.message_id, message.model, message.usage)
            self.say(self._telling.assistant(message))
        elif kind == "UserMessage":
            self._taken(message.uuid)
            _show(printed(message.tool_use_result))
            self.say(self._telling.user(message))
        elif kind == "ResultMessage":
            self._over(message)
        elif hasattr(message, "subtype"):
            await self._notice(message)

    def broke_off(self) -> None:
        """The turn will not come to its end."""
        self.say(self._telling.answered())
        self.say(("agent.usage", charge) for charge in self._spending.without_totals())

    def say(self, lines: Iterable[Line]) -> None:
        """Say events of this turn."""
        for event, data in lines:
            self._wire.event(event, turn=self.turn, **data)

    def conclude(
        self,
        error_type: Any,
        error: str,
        stop_reason: str | None,
        final_output: str | None = None,
        *,
        signal: int | None = None,
    ) -> None:
        """Say what came of the task, unless that was said."""
        if not self._finished:
            self._finished = True
            self._wire.result(
                error_type=error_type,
                error=error,
                signal=signal,
                turns=self.turn,
                final_output=final_output,
                stop_reason=stop_reason,
                session_id=self.session,
            )

    async def keep(self) -> None:
        """Have the transcript kept as it is now."""
        transcript = find(self._config, self.session)
        if transcript is not None:
            await written(transcript, self._telling.last_written, self._wire.within(WRITING))
            self._wire.transcript(transcript, self.session)

    async def _notice(self, notice: Any) -> None:
        if notice.subtype == "init":
            self._begun()
        if notice.subtype == "informational":
            self._turned_away |= (notice.data.get("prompt_submit_outcome") or {}).get("prompt_kept") is False
        self.say(self._telling.system(notice))
        if notice.subtype == "session_state_changed":
            if notice.data.get("state") == "idle":
                await self._nothing_to_do()
            else:
                self._busy_again()

    def _begun(self) -> None:
        """A turn begins."""
        self.turn += 1
        self._busy_again()
        self._wire.turn(self.turn, "running")
        said = next((content for _, content in self._waiting.values()), None)
        self.say([("agent.turn_started", {"prompt_preview": None if said is None else said[:_PREVIEW]})])
        if self._stop_turn is not None:
            self._stopping = asyncio.create_task(self._stop_turn())

    def _taken(self, uuid: str | None) -> None:
        """The agent has put this into its conversation."""
        message, _ = self._waiting.pop(uuid or "", (None, ""))
        if message is not None:
            self._wire.taken(message)
        message = message or self._refused.pop(uuid or "", None)
        if message is not None:
            self._has.add(message)

    def _turn_away(self, uuid: str) -> None:
        """Refuse this, unless the agent has mentioned it; where it is the task, nothing will come of that."""
        task = self._waiting.get(uuid, ("", ""))[0] is None
        self.refuse(uuid, _TURNED_AWAY)
        if task:
            self.conclude("exit_status", _TURNED_AWAY, "passed_over")

    def _over(self, result: Any) -> None:
        """A turn has ended; another one may follow at once."""
        for uuid in result.user_message_uuids or []:
            (self._turn_away if self._turned_away else self._taken)(uuid)
        self._turned_away = False
        if not self._waiting:
            self._let_go_on()
        self.session = result.session_id or self.session
        outcome = self._outcome = judge(result)
        self.say(self._telling.answered(result.stop_reason))
        charges = self._spending.charge(result.total_cost_usd, result.model_usage)
        self.say(("agent.usage", charge) for charge in charges)
        if outcome.error_type is not None:
            self.say([("agent.error", {"error": outcome.error, "phase": outcome.stop_reason})])
        ended = {"duration_ms": result.duration_ms, "stop_reason": outcome.stop_reason}
        self.say([("agent.turn_completed", ended)])

    def _busy_again(self) -> None:
        self.idle.clear()
        if self._settling is not None:
            self._settling.cancel()
            self._settling = None

    async def _nothing_to_do(self) -> None:
        """The agent waits. A message that it has not mentioned yet is about to begin a turn; or it was passed over."""
        if self._waiting:
            self._busy_again()
            self._settling = asyncio.create_task(self._settle())
            return
        self._let_go_on()
        await self.keep()
        outcome = self._outcome
        if outcome is not None and not outcome.interrupted and not (self.ending and outcome.error_type):
            self.conclude(outcome.error_type, outcome.error, outcome.stop_reason, outcome.final_output)
        self._wire.turn(self.turn, "idle")
        self.idle.set()

    def _let_go_on(self) -> None:
        if not self.ending:
            self._stop_turn = None
            self.goes_on.set()

    async def _settle(self) -> None:
        await asyncio.sleep(_SETTLING)
        self._settling = None
        task = any(message is None for message, _ in self._waiting.values())
        self.refuse_waiting(_PASSED_OVER)
        if task:
            self.conclude("exit_status", _PASSED_OVER, "passed_over")
        await self._nothing_to_do()


def _show(text: str) -> None:
    """Terminal output of the agent's commands goes where the driver's own goes."""
    if text:
        sys.stdout.write(text)
        sys.stdout.flush()
