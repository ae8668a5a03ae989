"""Expires unanswered approvals at their timeout, or when no agent can need them any more, and publishes that."""

from datetime import UTC, datetime
from typing import Final

from message_relay.approval import Approval
from message_relay.approval_carryover import ApprovalCarryover
from message_relay.approval_handler import ApprovalHandler
from message_relay.approval_rules import is_answer_expired, lapsed
from message_relay.approval_store import ApprovalStore, StoredApproval
from sandherd.concurrency import sleep_aligned

SCAN_INTERVAL: Final = 2.0
"""Seconds between two scans of the approvals."""


class ApprovalExpiry:
    """Scans the approvals. Every replica does it; compare-and-set ensures that an approval ends once.

    It also publishes decisions of relays that were killed before they published them.
    """

    def __init__(
        self, approvals: ApprovalStore, carryover: ApprovalCarryover, approval_handler: ApprovalHandler
    ) -> None:
        self._approvals = approvals
        self._carryover = carryover
        self._approval_handler = approval_handler
        self._settled: set[str] = set()
        """The subjects of approvals for which no further step is needed."""

    async def run(self) -> None:
        """Scan every `SCAN_INTERVAL` seconds. Runs until cancelled."""
        while True:
            await self.expire_due()
            await sleep_aligned(SCAN_INTERVAL)

    async def expire_due(self) -> None:
        """Scan all approvals that are not known to be settled, and end those that have expired."""
        subjects = await self._approvals.subjects()
        self._settled.intersection_update(subjects)
        for subject in subjects:
            stored = None if subject in self._settled else await self._approvals.at(subject)
            if stored is not None and await self._settle(stored):
                self._settled.add(subject)

    async def _settle(self, stored: StoredApproval) -> bool:
        """End the approval if it has expired, and publish its decision. Returns whether no further step is needed."""
        expired = await self._expired_approval(stored.approval)
        if expired is not None:
            written = await self._approvals.write(expired, stored)
            if written is None:  # answered at the same moment
                return False
            stored = written
        await self._approval_handler.conclude(stored)
        return not stored.approval.waits

    async def _expired_approval(self, approval: Approval) -> Approval | None:
        """The approval in its final state, if it or its answer has expired by now; None otherwise."""
        now = datetime.now(UTC)
        if approval.decision is not None:
            return approval.model_copy(update={"hand": "over"}) if is_answer_expired(approval, now) else None
        no_recipient = await self._carryover.ended(approval, approval.project, approval.sandbox)
        return lapsed(approval, now, ended=no_recipient is not None)
