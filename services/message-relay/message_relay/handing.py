"""Answers on their way to the agent that waits for them: in which sandbox that is, and whether it may have heard one.

An answer is good for once. So it is written down before it is handed to a worker that it is, and taken back only if
that worker surely has not given it to its agent; what is not taken back is handed to no other agent, ever.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from enum import Enum

from message_relay.answering import Answering
from message_relay.approvals import Approvals, Held
from message_relay.asked import Ref
from message_relay.deciding import Ended, ended, may_hear
from message_relay.judging import decided_already
from message_relay.outliving import Outliving
from message_relay.records import recorded_of
from message_relay.wording import addressed
from sandherd.bus.connection import Bus
from sandherd.contracts.delivery import InboxMessage, Receipt


class Left(Enum):
    """What a worker has left of what waits for it, and why."""

    NOTHING = "nothing"
    AWAY = "away"
    SILENT = "silent"
    """It is there, and does not say that it has the first."""
    NEXT = "next"
    """There is no agent for it any more, but the next attempt's may ask for it."""
    CHANGED = "changed"
    """Somebody else was faster; it is to be looked at anew."""


@dataclass(frozen=True, slots=True)
class Way:
    """Where an answer goes: to whom, or why to nobody, now (`left`) or ever (`gone`)."""

    held: Held
    message: InboxMessage
    gone: Ended | None = None
    left: Left | None = None


@dataclass(frozen=True, slots=True)
class Handed:
    """What came of handing it over, and its way as it is written down now."""

    way: Way
    receipt: Receipt | Left


class Handing:
    """Finds the way of an answer, and keeps the book of it."""

    def __init__(self, bus: Bus, approvals: Approvals, outliving: Outliving, answering: Answering) -> None:
        self._bus = bus
        self._approvals = approvals
        self._outliving = outliving
        self._answering = answering

    async def way(self, message: InboxMessage) -> Way | None:
        """The way of an answer as it is now; None for what is none, or is to an approval that is forgotten."""
        if message.message_type != "approval" or message.correlation_id is None:
            return None
        ref = Ref(sandbox=message.sandbox, approval_id=message.correlation_id)
        held = await self._approvals.latest(message.project, ref)
        if held is None:
            return None
        asked = held.asked
        to = addressed(message, asked)
        if asked.decision is None:  # it is asked again, and whoever hears that has only begun to take this over
            return Way(held, to, left=Left.NEXT)
        if asked.decision.answer != message.message:
            return Way(held, to, gone=Ended(decided_already(asked, asked.decision)))
        known = await recorded_of(self._bus, asked.project, asked.sandbox)
        gone = ended(asked.sandbox, known)
        if gone is not None and await self._waits(held):
            return Way(held, to, left=Left.NEXT)
        return Way(held, to, gone, None if may_hear(known) else Left.AWAY)

    async def hand(
        self,
        way: Way,
        knock: Callable[[InboxMessage], Awaitable[Left | None]],
        give: Callable[[InboxMessage], Awaitable[Receipt | Left]],
    ) -> Handed:
        """Give it to the worker; what that surely has not taken stays good for the agent of the next attempt.

        First it is asked whether it is there: of one that was killed a moment ago nobody could say what it took.
        """
        if way.held.asked.hand != "kept":
            return Handed(way, await give(way.message))
        absent = await knock(way.message)
        if absent is not None:
            return Handed(way, absent)
        return await self._hand(way, give)

    async def _hand(self, way: Way, give: Callable[[InboxMessage], Awaitable[Receipt | Left]]) -> Handed:
        handing = await self._note(way, "handing")
        if handing is None:
            return Handed(way, Left.CHANGED)
        receipt = await give(way.message)
        refused = isinstance(receipt, Receipt) and receipt.outcome == "rejected"
        if not refused and receipt is not Left.AWAY:
            return Handed(handing, receipt)
        kept = await self._note(handing, "kept")
        if kept is None:
            return Handed(handing, Left.CHANGED)
        if isinstance(receipt, Receipt) and receipt.agent_gone and await self._waits(kept.held):
            return Handed(kept, Left.NEXT)
        return Handed(kept, receipt)

    async def settle(self, way: Way) -> bool:
        """The answer is of no further use, for it has come to its end. False if it has got another way meanwhile."""
        if way.held.asked.hand not in {"kept", "handing"}:
            return True
        over = await self._note(way, "over")
        if over is not None:
            await self._answering.conclude(over.held)
        return over is not None

    async def _waits(self, held: Held) -> bool:
        return held.asked.hand == "kept" and await self._outliving.waits(held.asked)

    async def _note(self, way: Way, hand: str) -> Way | None:
        """None if somebody else was faster."""
        held = await self._approvals.write(way.held.asked.model_copy(update={"hand": hand}), way.held)
        return None if held is None else replace(way, held=held)
