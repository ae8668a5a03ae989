"""Expires unanswered approvals on timeout, or when their sandbox and task have ended, and publishes that."""

import asyncio
from datetime import UTC, datetime
from typing import Final

from message_relay.approval import Approval
from message_relay.approval_carryover import ApprovalCarryover
from message_relay.approval_handler import ApprovalHandler
from message_relay.approval_rules import is_answer_expired, lapsed
from message_relay.approval_store import ApprovalStore, StoredApproval

SCAN_INTERVAL: Final = 2.0


class ApprovalExpiry:
    """Scans the approvals. Every replica does: the first that writes the end of an approval has ended it.

    Also publishes decisions of relays that were killed between deciding and publishing.
    """

    def __init__(
        self, approvals: ApprovalStore, carryover: ApprovalCarryover, approval_handler: ApprovalHandler
    ) -> None:
        self._approvals = approvals
        self._carryover = carryover
        self._approval_handler = approval_handler
        self._settled: set[str] = set()

    async def run(self) -> None:
        """Scan every `SCAN_INTERVAL` seconds. Runs until cancelled."""
        while True:
            await self.expire_due()
            await asyncio.sleep(SCAN_INTERVAL)

    async def expire_due(self) -> None:
        """End what has expired among all approvals that are not known to be settled."""
        subjects = await self._approvals.subjects()
        self._settled.intersection_update(subjects)
        for subject in subjects:
            stored = None if subject in self._settled else await self._approvals.at(subject)
            if stored is not None and await self._is_settled(stored):
                self._settled.add(subject)

    async def _is_settled(self, stored: StoredApproval) -> bool:
        """Whether it is decided, its decision is published, and its answer waits for no worker."""
        expired = await self._expired(stored.approval)
        if expired is not None:
            written = await self._approvals.write(expired, stored)
            if written is None:  # answered at the same moment
                return False
            stored = written
        await self._approval_handler.conclude(stored)
        return not stored.approval.waits

    async def _expired(self, approval: Approval) -> Approval | None:
        """The approval with its end, if it has ended by now; None if that changes nothing."""
        now = datetime.now(UTC)
        if approval.decision is not None:
            return approval.model_copy(update={"hand": "over"}) if is_answer_expired(approval, now) else None
        no_recipient = await self._carryover.ended(approval, approval.project, approval.sandbox)
        return lapsed(approval, now, ended=no_recipient is not None)
