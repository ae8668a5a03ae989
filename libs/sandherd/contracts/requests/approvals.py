"""The question to event-ingest of what agents ask leave for."""

from typing import Any, ClassVar

from pydantic import BaseModel, Field

from sandherd.contracts.model import Model
from sandherd.contracts.names import SafeName
from sandherd.contracts.quantities import Moment
from sandherd.contracts.requests.base import Page, Request
from sandherd.contracts.states import ApprovalState, MessageState


class ApprovalView(Model):
    """An approval as it stands."""

    project: SafeName
    sandbox: SafeName
    approval_id: str
    state: ApprovalState
    task: SafeName | None = None
    tool: str
    input: dict[str, Any] = Field(default_factory=dict)
    """What the tool is to be called with, whole as the agent said it; empty if that is not kept any more."""
    reason: str | None = None
    """Why the agent asks."""
    requested_at: Moment
    expires_at: Moment | None = None
    on_timeout: str | None = None
    """What holds when nobody has answered by then: `allow` or `deny`."""
    decided_at: Moment | None = None
    decided_by: str | None = None
    decision_reason: str | None = None
    outcome: str | None = None
    """Of one that has expired: `granted` or `denied` as the default was; `ended` with its task, `withdrawn` by its
    agent, or `asked_again` by the next attempt. `decision_reason` says more."""
    answer: SafeName | None = None
    """The message that takes the answer to the agent."""
    answer_state: MessageState | None = None
    """How far that message is."""
    answer_reason: str | None = None
    """Why the agent did not get it."""


class ApprovalList(Model):
    """Approvals, newest first."""

    approvals: list[ApprovalView]
    next_cursor: str | None = None


class AskApprovals(Request[ApprovalList], Page):
    """What agents ask leave for, and what they asked for before."""

    Answer: ClassVar[type[BaseModel]] = ApprovalList
    type: ClassVar[str] = "event-ingest.approvals"
    sandbox: SafeName | None = None
    approval_id: str | None = None
    state: ApprovalState | None = None
