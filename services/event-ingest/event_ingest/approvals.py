"""How an approval stands, by what events say of it: a row of its read table. Pure, as `event_ingest.standing` is."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from event_ingest.standing import storable
from sandherd.contracts.envelope import Envelope
from sandherd.contracts.events.message import ApprovalRequested
from sandherd.contracts.states import ApprovalState

APPROVAL_STATES: Final[Mapping[str, ApprovalState]] = {
    "approval.requested": ApprovalState.PENDING,
    "approval.granted": ApprovalState.GRANTED,
    "approval.denied": ApprovalState.DENIED,
    "approval.expired": ApprovalState.EXPIRED,
}


@dataclass(slots=True)
class ApprovalRow:
    """What a batch says of an approval. The fields are the columns, in the order of the statement."""

    project: str
    sandbox: str
    approval: str
    state: str = ""
    state_sequence: int = 0
    state_at: datetime | None = None
    tool: str | None = None
    reason: str | None = None
    requested_at: datetime | None = None
    expires_at: datetime | None = None
    on_timeout: str | None = None
    asked_in: UUID | None = None
    answer: str | None = None
    decided_by: str | None = None
    decision_reason: str | None = None
    outcome: str | None = None

    def absorb(self, event: Envelope[Any]) -> None:
        """Take in what an approval's event says."""
        data: Any = event.data
        if event.sequence > self.state_sequence:
            state = APPROVAL_STATES[event.type].value
            self.state, self.state_sequence, self.state_at = state, event.sequence, event.time
        if isinstance(data, ApprovalRequested):
            self.requested_at, self.expires_at, self.asked_in = event.time, data.expires_at, data.asked_in
            self.tool, self.reason, self.on_timeout = map(storable, (data.tool, data.reason, data.on_timeout))
            return
        self.answer, self.decided_by = getattr(data, "answer", None), storable(getattr(data, "by", None))
        self.decision_reason = storable(getattr(data, "reason", None))
        self.outcome = storable(getattr(data, "outcome", None))
