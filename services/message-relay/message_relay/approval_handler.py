"""Handles approval requests and answers: the first answer decides, and is the only one delivered to the agent."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, cast

from message_relay.approval import Approval, ApprovalRef, requested_approval, service_approval
from message_relay.approval_carryover import ApprovalCarryover
from message_relay.approval_messages import message_of, rejected, requested
from message_relay.approval_rules import (
    ApprovalRefusal,
    answered,
    inheriting,
    is_decided_by,
    refusal,
    replaced,
    withdrawn,
)
from message_relay.approval_store import ApprovalStore, StoredApproval
from message_relay.relay_events import RelayEvents
from sandherd.bus.consumers.consumer import DONE, Delivery, Outcome, Retry
from sandherd.contracts.commands import AnswerApproval, RequestApproval, WithdrawApproval
from sandherd.contracts.decoder import read_event
from sandherd.contracts.envelope import Envelope
from sandherd.contracts.events.tools import AgentApprovalRequested, AgentApprovalWithdrawn
from sandherd.contracts.inbox_messages import InboxMessage
from sandherd.telemetry import logs

PATIENCE: Final = timedelta(seconds=5)
"""How long an answer or a withdrawal waits for its approval request, which may arrive later."""
MAX_OPEN_IN_PROJECT: Final = 1000
"""Maximum of open approvals of a project. With texts of maximum length they use an eighth of the bucket."""
_MIN_DELIVERIES: Final = 8
"""Minimum deliveries of a withdrawal before it is ignored because its approval is not found: another replica may
still be handling the request."""
_NOT_REQUESTED_YET: Final = Retry(0.25, "no such approval was requested yet")
_CHANGED_CONCURRENTLY: Final = Retry(0.05, "the approval was changed at the same time")
_log: Final = logs.get("approval_handler")


@dataclass(frozen=True, slots=True)
class Answered:
    """An answer as a message, the reason if it is refused, and whether it is for a service instead of an agent."""

    message: InboxMessage
    refusal: ApprovalRefusal | None
    to_service: bool = False


class ApprovalHandler:
    """Stores approval requests, and decides them by answers."""

    def __init__(
        self,
        approvals: ApprovalStore,
        carryover: ApprovalCarryover,
        events: RelayEvents,
        max_open: int = 100,
        max_open_in_project: int = MAX_OPEN_IN_PROJECT,
    ) -> None:
        self._max_open = max_open
        self._max_open_in_project = max_open_in_project
        self._approvals = approvals
        self._carryover = carryover
        self._events = events

    async def handle(self, delivery: Delivery) -> Outcome:
        """Handle an agent's request for an approval. Raises `ContractError` for an invalid event.

        Requests with the same approval id in one sandbox, for instance of a restarted worker, are one approval. If
        the next attempt requests the same, its approval replaces that of the previous attempt.
        """
        event = cast("Envelope[AgentApprovalRequested]", read_event(delivery.subject, delivery.data))
        approval = requested_approval(
            event, delivery.at, await self._carryover.attempt_in(event.project, event.subject)
        )
        excess = await self._excess(approval)
        if excess is not None:
            await self._events.publish_rejected(approval, rejected(approval, excess), datetime.now(UTC))
            return DONE
        stored = await self._approvals.write(approval, None)
        stored = stored or await self._approvals.load(approval.project, approval.sandbox, approval.approval_id)
        if stored is None:
            return _CHANGED_CONCURRENTLY
        if stored.approval.asked_in != approval.asked_in:
            _log.info("approval requested again", sandbox=approval.sandbox, approval=approval.approval_id)
            return DONE
        await self._events.publish_requested(stored.approval, requested(stored.approval), datetime.now(UTC))
        return DONE if await self._take_over(stored) else _CHANGED_CONCURRENTLY

    async def request(self, command: Envelope[RequestApproval], delivery: Delivery) -> Outcome:
        """Handle a service's request for an approval. The limits for requests of agents do not apply."""
        approval = service_approval(command, delivery.at)
        stored = await self._approvals.write(approval, None)
        stored = stored or await self._approvals.load(approval.project, approval.sandbox, approval.approval_id)
        if stored is None:
            return _CHANGED_CONCURRENTLY
        if stored.approval.asked_in == approval.asked_in:
            await self._events.publish_requested(stored.approval, requested(stored.approval), datetime.now(UTC))
        return DONE

    async def withdraw_of_service(self, command: Envelope[WithdrawApproval]) -> Outcome:
        """Handle a service's withdrawal of its request."""
        data = command.data
        stored = await self._approvals.load(command.project, data.sandbox, data.approval_id)
        if stored is None or stored.approval.requested_by is None:
            return DONE
        return await self._withdraw(stored, data.reason)

    async def _withdraw(self, stored: StoredApproval, reason: str) -> Outcome:
        ended = withdrawn(stored.approval, reason, datetime.now(UTC))
        if ended is not None:
            written = await self._approvals.write(ended, stored)
            if written is None:
                return _CHANGED_CONCURRENTLY
            stored = written
        await self.conclude(stored)
        return DONE

    async def _excess(self, approval: Approval) -> str | None:
        """A text about the limit that a new approval would exceed; None if none, or if it is stored already."""
        if self._approvals.open_in(approval.project, approval.sandbox) >= self._max_open:
            excess = f"{self._max_open} approvals of {approval.sandbox} are open already"
        elif self._approvals.open_in_project(approval.project) >= self._max_open_in_project:
            excess = f"{self._max_open_in_project} approvals of project {approval.project} are open already"
        elif await self._approvals.is_full():
            excess = "the bucket of approvals is nearly full"
        else:
            return None
        known = await self._approvals.load(approval.project, approval.sandbox, approval.approval_id)
        return excess if known is None else None

    async def withdraw(self, delivery: Delivery) -> Outcome:
        """Handle an agent's withdrawal of its request. Raises `ContractError` for an invalid event."""
        event = cast("Envelope[AgentApprovalWithdrawn]", read_event(delivery.subject, delivery.data))
        stored = await self._approvals.load(event.project, event.subject, event.data.approval_id)
        now = datetime.now(UTC)
        if stored is None:
            return _NOT_REQUESTED_YET if delivery.deliveries < _MIN_DELIVERIES or now - delivery.at < PATIENCE else DONE
        if stored.approval.requested_by is not None:
            return DONE  # an agent can't withdraw what a service requests about it
        return await self._withdraw(stored, event.data.reason)

    async def decide(
        self,
        command: Envelope[AnswerApproval],
        at: datetime,
        reserve: Callable[[], Awaitable[Retry | None]] | None = None,
    ) -> Answered | Retry:
        """Decide an approval by an answer. Returns the answer as a message, and the reason if it is refused.

        The caller stores the message for the agent, unless it is refused or a service requested the approval. If the
        approval was requested again, the answer decides the latest request. If the answer is handled again, it is
        already the decision, and the remaining steps are repeated. `reserve` is called before the decision to reserve
        the message's name; it returns None, or the delay of a retry.
        """
        data, now = command.data, datetime.now(UTC)
        ref = ApprovalRef(sandbox=data.sandbox, approval_id=data.approval_id)
        stored = await self._approvals.latest(command.project, ref)
        decided = stored is not None and is_decided_by(stored.approval, data)
        if stored is None or not decided:
            approval = stored.approval if stored else None
            no_recipient = await self._carryover.ended(
                approval, command.project, approval.sandbox if approval else data.sandbox
            )
            if stored is None and no_recipient is None and now - at < PATIENCE:
                return _NOT_REQUESTED_YET
            refused = refusal(approval, data, now, no_recipient)
            if stored is None or refused is not None:
                return Answered(message_of(command, at, None), refused)
        prevented = None if reserve is None else await reserve()
        if prevented is not None:
            return prevented
        if not decided:
            stored = await self._approvals.write(answered(stored.approval, data, now), stored)
            if stored is None:
                return _CHANGED_CONCURRENTLY
        await self.conclude(stored)
        message = message_of(command, at, stored.approval)
        return Answered(message, None, to_service=stored.approval.requested_by is not None)

    async def conclude(self, stored: StoredApproval) -> None:
        """Publish the decision, record that it is published, and set an expiry on the question's entry. Idempotent."""
        approval = stored.approval
        if approval.decision is None:
            return
        if not approval.said:
            await self._events.publish_decided(approval, approval.decision)
        if not approval.waits:
            await self._approvals.expire_entry(approval)
        if not approval.said:
            await self._approvals.write(approval.model_copy(update={"said": True}), stored)

    async def _take_over(self, stored: StoredApproval) -> bool:
        """Replace the previous attempt's approval, and inherit its answer. Returns False after a conflicting write.

        Finally it records that this approval is the last one of its question. Until then, a redelivery of the request
        repeats all steps.
        """
        approval = stored.approval
        if approval.question is None:
            return True
        latest = await self._approvals.latest_attempt(approval)
        if latest.requester is None:
            return await self._approvals.record_latest(approval, latest)
        if latest.requester.ref == approval.ref or latest.requester.attempt > approval.attempt:
            return True
        before = await self._approvals.latest(approval.project, latest.requester.ref, approval.ref)
        if (
            before is not None
            and before.approval.attempt < approval.attempt
            and not await self._replace(before, stored)
        ):
            return False
        return await self._approvals.record_latest(approval, latest)

    async def _replace(self, before: StoredApproval, stored: StoredApproval) -> bool:
        """Replace the approval `before` by `stored`, which inherits its answer. Returns False after a conflict."""
        ref = stored.approval.ref
        if before.approval.next != ref:
            replacement = replaced(before.approval, ref, datetime.now(UTC))
            if replacement is None:
                return True
            written = await self._approvals.write(replacement, before)
            if written is None:
                return False
            before = written
        await self.conclude(before)
        inherited = inheriting(stored.approval, before.approval)
        if inherited is None:
            return True
        written = await self._approvals.write(inherited, stored)
        if written is None:
            return False
        await self.conclude(written)
        return True
