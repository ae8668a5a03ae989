"""The request to event-ingest for approvals."""

from typing import Any, ClassVar

from pydantic import BaseModel, Field

from sandherd.contracts.model import Model, Moment
from sandherd.contracts.names import SafeName
from sandherd.contracts.requests.base import Page, Request
from sandherd.contracts.states import ApprovalState, MessageState


class ApprovalView(Model):
    """The current state of an approval."""

    project: SafeName
    sandbox: SafeName
    approval_id: str
    state: ApprovalState
    task: SafeName | None = None
    tool: str
    input: dict[str, Any] = Field(default_factory=dict)
    """The complete input that the tool is to be called with; empty if it is no longer stored."""
    reason: str | None = None
    """Why the approval is requested."""
    requested_at: Moment
    expires_at: Moment | None = None
    on_timeout: str | None = None
    """The decision if no user has answered by `expires_at`: `allow` or `deny`."""
    decided_at: Moment | None = None
    decided_by: str | None = None
    decision_reason: str | None = None
    outcome: str | None = None
    """For an expired approval: `granted` or `denied`, by the default in its request; `ended`, with its task;
    `withdrawn`, by its agent; or `asked_again`, by the next attempt. `decision_reason` has details."""
    answer: SafeName | None = None
    """The message that delivers the answer to the agent."""
    answer_state: MessageState | None = None
    """The state of that message."""
    answer_reason: str | None = None
    """Why the message was not delivered to the agent."""


class ApprovalList(Model):
    """Approvals, newest first."""

    approvals: list[ApprovalView]
    next_cursor: str | None = None


class ListApprovals(Request[ApprovalList], Page):
    """List pending and earlier approvals."""

    Answer: ClassVar[type[BaseModel]] = ApprovalList
    type: ClassVar[str] = "event-ingest.approvals"
    sandbox: SafeName | None = None
    approval_id: str | None = None
    state: ApprovalState | None = None
