"""Routes answers to approvals: decides to which sandbox an answer is delivered, and records how far its delivery is.

An answer may be used only once. So before it is sent to a worker, the store records that it is being delivered. The
record is reverted only if the worker certainly did not pass the answer to its agent. Otherwise no other agent gets it.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from enum import Enum

from message_relay.approval import ApprovalRef
from message_relay.approval_carryover import ApprovalCarryover
from message_relay.approval_handler import ApprovalHandler
from message_relay.approval_messages import addressed
from message_relay.approval_rules import decided_already
from message_relay.approval_store import ApprovalStore, StoredApproval
from message_relay.delivery_rules import NoRecipient, ended, is_reachable
from message_relay.record_reader import sandbox_record
from sandherd.bus.connection import Bus
from sandherd.contracts.inbox_messages import InboxMessage, Receipt


class LeftoverAnswer(Enum):
    """Whether messages remain in a sandbox's inbox after an attempt to deliver them, and the reason."""

    NOTHING = "nothing"
    UNAVAILABLE = "unavailable"
    """The worker is not subscribed, or its sandbox is paused, or the broker does not reply."""
    SILENT = "silent"
    """The worker is subscribed, but does not acknowledge the first message."""
    NEXT = "next"
    """The agent of this sandbox has ended, but the agent of the next attempt may request the same approval."""
    CHANGED = "changed"
    """Another replica wrote the approval first; read it again."""


@dataclass(frozen=True, slots=True)
class AnswerRoute:
    """The route of an answer: the approval and the addressed message.

    If the message can't be delivered at present, `left` is the reason. If it never can, `no_recipient` is the reason.
    """

    stored: StoredApproval
    message: InboxMessage
    no_recipient: NoRecipient | None = None
    left: LeftoverAnswer | None = None


@dataclass(frozen=True, slots=True)
class AnswerDelivery:
    """The result of an attempt to deliver an answer: the route with the stored approval, and the receipt.

    `receipt` is a `LeftoverAnswer`, the reason, if the answer was not delivered.
    """

    route: AnswerRoute
    receipt: Receipt | LeftoverAnswer


class AnswerRouter:
    """Finds the routes of answers, and records the progress of their delivery in the approvals."""

    def __init__(
        self, bus: Bus, approvals: ApprovalStore, carryover: ApprovalCarryover, approval_handler: ApprovalHandler
    ) -> None:
        self._bus = bus
        self._approvals = approvals
        self._carryover = carryover
        self._approval_handler = approval_handler

    async def route(self, message: InboxMessage) -> AnswerRoute | None:
        """The current route of a message; None if it is not an answer, or if its approval is no longer stored."""
        if message.message_type != "approval" or message.correlation_id is None:
            return None
        ref = ApprovalRef(sandbox=message.sandbox, approval_id=message.correlation_id)
        stored = await self._approvals.latest(message.project, ref)
        if stored is None:
            return None
        approval = stored.approval
        to = addressed(message, approval)
        if approval.decision is None:  # requested again, and not yet decided by the inherited answer
            return AnswerRoute(stored, to, left=LeftoverAnswer.NEXT)
        if approval.decision.answer != message.message:
            return AnswerRoute(stored, to, no_recipient=NoRecipient(decided_already(approval, approval.decision)))
        known = await sandbox_record(self._bus, approval.project, approval.sandbox)
        no_recipient = ended(approval.sandbox, known)
        if no_recipient is not None and await self._may_carry_over(stored):
            return AnswerRoute(stored, to, left=LeftoverAnswer.NEXT)
        return AnswerRoute(stored, to, no_recipient, None if is_reachable(known) else LeftoverAnswer.UNAVAILABLE)

    async def deliver(
        self,
        route: AnswerRoute,
        probe: Callable[[InboxMessage], Awaitable[LeftoverAnswer | None]],
        send: Callable[[InboxMessage], Awaitable[Receipt | LeftoverAnswer]],
    ) -> AnswerDelivery:
        """Deliver an answer to a worker. If the worker certainly did not receive it, the next attempt may still use it.

        `probe` checks first whether the worker replies. If the answer was sent to a worker that was just killed, it
        would be unknown whether the agent received it.
        """
        if route.stored.approval.hand != "kept":
            return AnswerDelivery(route, await send(route.message))
        obstacle = await probe(route.message)
        if obstacle is not None:
            return AnswerDelivery(route, obstacle)
        return await self._deliver(route, send)

    async def _deliver(
        self, route: AnswerRoute, send: Callable[[InboxMessage], Awaitable[Receipt | LeftoverAnswer]]
    ) -> AnswerDelivery:
        delivering = await self._mark(route, "handing")
        if delivering is None:
            return AnswerDelivery(route, LeftoverAnswer.CHANGED)
        receipt = await send(route.message)
        refused = isinstance(receipt, Receipt) and receipt.outcome == "rejected"
        if not refused and receipt is not LeftoverAnswer.UNAVAILABLE:
            return AnswerDelivery(delivering, receipt)
        released = await self._mark(delivering, "kept")
        if released is None:
            return AnswerDelivery(delivering, LeftoverAnswer.CHANGED)
        if isinstance(receipt, Receipt) and receipt.agent_gone and await self._may_carry_over(released.stored):
            return AnswerDelivery(released, LeftoverAnswer.NEXT)
        return AnswerDelivery(released, receipt)

    async def mark_used(self, route: AnswerRoute) -> bool:
        """Mark an ended message's answer as used. Returns False if another replica has written the approval first."""
        if route.stored.approval.hand not in {"kept", "handing"}:
            return True
        marked = await self._mark(route, "over")
        if marked is not None:
            await self._approval_handler.conclude(marked.stored)
        return marked is not None

    async def _may_carry_over(self, stored: StoredApproval) -> bool:
        """Whether no worker has the answer, and the next attempt may request the same approval."""
        return stored.approval.hand == "kept" and await self._carryover.waits(stored.approval)

    async def _mark(self, route: AnswerRoute, hand: str) -> AnswerRoute | None:
        """Write this value of `hand` to the approval. Returns None if another replica has written it first."""
        stored = await self._approvals.write(route.stored.approval.model_copy(update={"hand": hand}), route.stored)
        return None if stored is None else replace(route, stored=stored)
