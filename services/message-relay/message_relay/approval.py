"""Approvals as they are stored: the request, and the decision. Pure; `approval_store` stores them."""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, Literal
from uuid import UUID

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from sandherd.contracts.commands import ApprovalId, RequestApproval
from sandherd.contracts.envelope import Envelope
from sandherd.contracts.errors import Code, ContractError
from sandherd.contracts.events.tools import AgentApprovalRequested
from sandherd.contracts.model import Moment
from sandherd.contracts.names import SafeName
from sandherd.contracts.states import ApprovalState
from sandherd.contracts.subjects import Principal

LONGEST_TOOL: Final = 200
"""Maximum characters of the tool's name in an agent's request; the rest is cut off."""
LONGEST_REASON: Final = 4000
"""Maximum characters of an agent's reason for a request or a withdrawal; the rest is cut off."""
SETTLED_REASON: Final = 200
"""Maximum characters of a decision's reason that stay stored when the approval is settled."""
_ID: Final = TypeAdapter(ApprovalId)
_NAME_MARKER: Final = "\0"
"""Replaces names of the sandbox in a question. It occurs in no other JSON text, where it would be escaped."""


class ApprovalDecision(BaseModel):
    """The decision. `answer` is the id of the message that carries it to the agent; None for an expired approval."""

    model_config = ConfigDict(frozen=True)

    state: ApprovalState
    at: Moment
    answer: SafeName | None = None
    by: str | None = None
    reason: str | None = None
    outcome: str | None = None


class ApprovalRef(BaseModel):
    """The sandbox and the id that identify an approval in its project."""

    model_config = ConfigDict(frozen=True)

    sandbox: SafeName
    approval_id: ApprovalId


class Requester(ApprovalRef):
    """The latest approval of a question, and its attempt."""

    attempt: int
    over: bool = False
    """Whether the approval is of no further use: it is decided, and no answer waits for a worker."""

    @property
    def ref(self) -> ApprovalRef:
        """The reference to the approval."""
        return ApprovalRef(sandbox=self.sandbox, approval_id=self.approval_id)


class Approval(BaseModel):
    """An approval. `asked_at` and `expires_at` are in the broker's time."""

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
    decision: ApprovalDecision | None = None
    said: bool = False
    """Whether its decision is known to have been published."""
    task: SafeName | None = None
    life: str = ""
    """The `life` in the task's record, which differs for each task of the same name."""
    attempt: int = 1
    requested_by: str | None = None
    """The service that requests the approval; None if the agent does. A service gets the answer by its event."""
    question: str | None = None
    """A digest of the request, which is equal for equal requests of one task. None if the request can't be compared:
    then the approval ends with its sandbox."""
    next: ApprovalRef | None = None
    """The approval of a later attempt that requests the same and has replaced this one."""
    hand: Literal["kept", "handing", "over"] | None = None
    """The state of the answer; None if there is none. `kept`: it is stored here, and certainly no worker has it.
    `handing`: it is being delivered, and a worker may have it. `over`: it is of no further use."""

    @property
    def ref(self) -> ApprovalRef:
        """The reference to this approval."""
        return ApprovalRef(sandbox=self.sandbox, approval_id=self.approval_id)

    @property
    def waits(self) -> bool:
        """Whether the approval waits for an answer, or its answer waits for a worker."""
        return self.decision is None or self.hand in {"kept", "handing"}


@dataclass(frozen=True, slots=True)
class AttemptRef:
    """The attempt that requests an approval: its task, the task's `life`, and the names of its sandbox."""

    task: str
    life: str
    attempt: int
    names: tuple[str, ...]


def settled(approval: Approval) -> Approval:
    """The approval without texts that were only needed while it waited: agents may choose long texts."""
    decision = approval.decision
    if decision is not None and decision.reason is not None:
        decision = decision.model_copy(update={"reason": decision.reason[:SETTLED_REASON]})
    return approval.model_copy(update={"tool": "", "reason": None, "decision": decision})


def digest_of(approval_id: str) -> str:
    """A digest of an approval's id for subjects and sources, because workers may choose any text as the id."""
    return hashlib.sha256(approval_id.encode()).hexdigest()[:32]


def requested_approval(event: Envelope[AgentApprovalRequested], at: datetime, of: AttemptRef | None = None) -> Approval:
    """The approval that an event requests, in the attempt `of`. Raises `ContractError` for an invalid id."""
    data = event.data
    try:
        approval_id = _ID.validate_python(data.approval_id)
    except ValidationError:
        raise ContractError(
            Code.INVALID_FIELD,
            "data.approval_id: no answer can refer to this id",
            field="data.approval_id",
            remedy="use an approval id of 1 to 128 printable characters",
        ) from None
    approval = Approval(
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
    if of is None:
        return approval
    question = question_of(data, of.life, of.names)
    return approval.model_copy(update={"task": of.task, "life": of.life, "attempt": of.attempt, "question": question})


def service_approval(command: Envelope[RequestApproval], at: datetime) -> Approval:
    """The approval that a service requests. It ends with its sandbox."""
    data = command.data
    return Approval(
        project=command.project,
        sandbox=data.sandbox,
        approval_id=data.approval_id,
        tool=data.tool,
        reason=data.reason,
        asked_at=at,
        asked_in=command.id,
        expires_at=_deadline(at, data.timeout_seconds),
        traceparent=command.traceparent,
        requested_by=Principal.MONITOR,
    )


def _deadline(at: datetime, seconds: float | None) -> datetime | None:
    """When an approval expires; None if it never does, because it has no timeout, or one of more than a year."""
    year = timedelta(days=365).total_seconds()
    return None if seconds is None or seconds > year else at + timedelta(seconds=seconds)


def question_of(data: AgentApprovalRequested, life: str, names: Iterable[str]) -> str | None:
    """A digest of the question: of the tool and its input, in one `life` of a task.

    The input may contain paths with the sandbox's name, which differs in each attempt, so all `names` are replaced by
    one marker. None if the event has only the beginning of the input: inputs with the same beginning may differ.
    """
    if data.artifacts:
        return None
    text = json.dumps([life, data.tool, data.input], sort_keys=True, separators=(",", ":"))
    for name in sorted(names, key=len, reverse=True):
        text = text.replace(name, _NAME_MARKER)
    return hashlib.sha256(text.encode()).hexdigest()[:32]
