"""What an agent asks leave for, how it is decided, and what is said of it. Pure; `approvals` keeps it in the bucket."""

import hashlib
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, Literal
from uuid import UUID

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from message_relay.deciding import Ended
from sandherd.contracts.commands import AnswerApproval, ApprovalId
from sandherd.contracts.delivery import ApprovalAnswer, InboxMessage
from sandherd.contracts.envelope import Envelope
from sandherd.contracts.errors import Code, ContractError
from sandherd.contracts.events import EventData
from sandherd.contracts.events.message import ApprovalDenied, ApprovalExpired, ApprovalGranted, ApprovalRequested
from sandherd.contracts.events.tools import AgentApprovalRequested
from sandherd.contracts.names import SafeName
from sandherd.contracts.quantities import Moment
from sandherd.contracts.states import ApprovalState, checked

LONGEST_TOOL: Final = 200
LONGEST_REASON: Final = 4000
LONGEST_WAIT: Final = timedelta(days=7)
"""So long an answer may wait for a worker that is away; as long as INBOX keeps anything."""
_ID: Final = TypeAdapter(ApprovalId)
_DEFAULTS: Final = {"allow": "granted", "deny": "denied"}


class Decision(BaseModel):
    """What became of it. `answer` is the message that says so to the agent; one that has expired has none."""

    model_config = ConfigDict(frozen=True)

    state: ApprovalState
    at: Moment
    answer: SafeName | None = None
    by: str | None = None
    reason: str | None = None
    outcome: str | None = None


class Asked(BaseModel):
    """An approval. `asked_at` and `expires_at` are of the broker's clock."""

    model_config = ConfigDict(frozen=True)

    project: SafeName
    sandbox: SafeName
    approval_id: ApprovalId
    tool: str
    reason: str | None = None
    asked_at: Moment
    asked_in: UUID
    expires_at: Moment | None = None
    on_timeout: Literal["allow", "deny"] | None = None
    traceparent: str | None = None
    decision: Decision | None = None
    said: bool = False
    """Whether its decision is known to have been said."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why an answer does not count, for people and for programs."""

    code: Code
    reason: str


def digest_of(approval_id: str) -> str:
    """What stands for an approval's id in subjects and sources: workers choose ids freely."""
    return hashlib.sha256(approval_id.encode()).hexdigest()[:32]


def asked_of(event: Envelope[AgentApprovalRequested], at: datetime) -> Asked:
    """What an agent's worker asks. Raises `ContractError` for an id that no answer could name."""
    data = event.data
    try:
        approval_id = _ID.validate_python(data.approval_id)
    except ValidationError:
        raise ContractError(
            Code.INVALID_FIELD,
            "data.approval_id: no answer can name it",
            field="data.approval_id",
            remedy="call an approval by 1 to 128 printable characters",
        ) from None
    return Asked(
        project=event.project,
        sandbox=event.subject,
        approval_id=approval_id,
        tool=data.tool[:LONGEST_TOOL],
        reason=None if data.reason is None else data.reason[:LONGEST_REASON],
        asked_at=at,
        asked_in=event.id,
        expires_at=_deadline(at, data.timeout_seconds),
        on_timeout=data.on_timeout,
        traceparent=event.traceparent,
    )


def _deadline(at: datetime, seconds: float | None) -> datetime | None:
    """When it expires; one that waits for longer than a year waits for ever."""
    year = timedelta(days=365).total_seconds()
    return None if seconds is None or seconds > year else at + timedelta(seconds=seconds)


def refusal(asked: Asked | None, answer: AnswerApproval, now: datetime, gone: Ended | None) -> Refusal | None:
    """Why an answer does not count; None if it does. Nobody in a sandbox that is `gone` waits for one."""
    name = f"approval {answer.approval_id} of {answer.sandbox}"
    if gone is not None:
        return Refusal(Code.REFUSED, gone.reason)
    if asked is None:
        return Refusal(Code.NOT_FOUND, f"the agent in {answer.sandbox} asks for no approval {answer.approval_id}")
    if asked.decision is not None:
        by = f" by {asked.decision.by}" if asked.decision.by else ""
        what = "expired" if asked.decision.state is ApprovalState.EXPIRED else f"was {asked.decision.state}{by}"
        return Refusal(Code.CONFLICT, f"{name} {what} at {asked.decision.at:%Y-%m-%d %H:%M:%S} UTC already")
    if asked.expires_at is not None and now >= asked.expires_at:
        return Refusal(Code.CONFLICT, f"{name} expired at {asked.expires_at:%Y-%m-%d %H:%M:%S} UTC")
    return None


def answered(asked: Asked, answer: AnswerApproval, at: datetime) -> Asked:
    """Decided by an answer."""
    state = ApprovalState.GRANTED if answer.granted else ApprovalState.DENIED
    decision = Decision(state=state, at=at, answer=answer.message, by=answer.answered_by, reason=answer.reason)
    return _decided(asked, decision)


def is_decided_by(asked: Asked, answer: AnswerApproval) -> bool:
    """Whether it was this very answer, given again or handled again by a relay that was killed in between."""
    wanted = ApprovalState.GRANTED if answer.granted else ApprovalState.DENIED
    decision = asked.decision
    return decision is not None and (decision.answer, decision.state) == (answer.message, wanted)


def lapsed(asked: Asked, now: datetime, *, ended: bool) -> Asked | None:
    """Decided by nobody, as its time or its sandbox is over; None if it still waits."""
    if asked.expires_at is not None and now >= asked.expires_at:
        outcome = _DEFAULTS[asked.on_timeout or "deny"]
    elif ended:
        outcome = "ended"
    else:
        return None
    return _decided(asked, Decision(state=ApprovalState.EXPIRED, at=now, outcome=outcome))


def _decided(asked: Asked, decision: Decision) -> Asked:
    checked(asked.decision.state if asked.decision else ApprovalState.PENDING, decision.state)
    return asked.model_copy(update={"decision": decision})


def requested(asked: Asked) -> ApprovalRequested:
    """The event that a person is asked."""
    return ApprovalRequested(
        approval_id=asked.approval_id,
        tool=asked.tool,
        reason=asked.reason,
        expires_at=asked.expires_at,
        on_timeout=asked.on_timeout,
        asked_in=asked.asked_in,
    )


def decided(approval_id: str, decision: Decision) -> EventData:
    """The event of what became of it."""
    if decision.state is ApprovalState.EXPIRED:
        return ApprovalExpired(approval_id=approval_id, outcome=decision.outcome or "denied")
    event = ApprovalGranted if decision.state is ApprovalState.GRANTED else ApprovalDenied
    return event(approval_id=approval_id, by=decision.by, reason=decision.reason, answer=decision.answer)


def message_of(command: Envelope[AnswerApproval], at: datetime, asked: Asked | None) -> InboxMessage:
    """The answer as it waits for the worker: until the approval expires, when there is no more use in it.

    `at` is when the answer was given; the one that decided bears the time of the decision, however often it is given.
    """
    data = command.data
    if asked is not None and asked.decision is not None and is_decided_by(asked, data):
        at = asked.decision.at
    content = ApprovalAnswer(approval_id=data.approval_id, granted=data.granted, reason=data.reason)
    return InboxMessage(
        message=data.message,
        project=command.project,
        sandbox=data.sandbox,
        content=content.model_dump_json(),
        message_type="approval",
        sender_id=data.answered_by,
        correlation_id=data.approval_id,
        sent_at=at,
        expires_at=(asked and asked.expires_at) or at + LONGEST_WAIT,
        traceparent=command.traceparent,
    )
