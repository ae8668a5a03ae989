"""What an agent asks leave for, and what became of it, as it is kept. Pure; `approvals` keeps it in the bucket."""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, Literal
from uuid import UUID

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from sandherd.contracts.commands import ApprovalId
from sandherd.contracts.envelope import Envelope
from sandherd.contracts.errors import Code, ContractError
from sandherd.contracts.events.tools import AgentApprovalRequested
from sandherd.contracts.names import SafeName
from sandherd.contracts.quantities import Moment
from sandherd.contracts.states import ApprovalState

LONGEST_TOOL: Final = 200
LONGEST_REASON: Final = 4000
_ID: Final = TypeAdapter(ApprovalId)
_ITS_OWN: Final = "\0"
"""In no JSON: there it is written otherwise."""


class Decision(BaseModel):
    """What became of it. `answer` is the message that says so to the agent; one that has expired has none."""

    model_config = ConfigDict(frozen=True)

    state: ApprovalState
    at: Moment
    answer: SafeName | None = None
    by: str | None = None
    reason: str | None = None
    outcome: str | None = None


class Ref(BaseModel):
    """An approval, by name."""

    model_config = ConfigDict(frozen=True)

    sandbox: SafeName
    approval_id: ApprovalId


class Asker(Ref):
    """Who has asked a question last, and in which attempt."""

    attempt: int
    over: bool = False
    """Whether nothing of it is of use any more."""

    @property
    def ref(self) -> Ref:
        """The approval."""
        return Ref(sandbox=self.sandbox, approval_id=self.approval_id)


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
    task: SafeName | None = None
    life: str = ""
    """Of the task, as its record calls it."""
    attempt: int = 1
    question: str | None = None
    """Stands for what is asked; whoever asks the same for the same task has the same. None for what can't be compared,
    and then it is over with its sandbox."""
    next: Ref | None = None
    """The same question of a later attempt, which has taken its place."""
    hand: Literal["kept", "handing", "over"] | None = None
    """Of one that was answered. `kept`: surely no worker has got the answer. `handing`: one may have. `over`: it is of
    no further use."""

    @property
    def ref(self) -> Ref:
        """Its name."""
        return Ref(sandbox=self.sandbox, approval_id=self.approval_id)

    @property
    def waits(self) -> bool:
        """Whether it waits for an answer, or its answer for a worker."""
        return self.decision is None or self.hand in {"kept", "handing"}


@dataclass(frozen=True, slots=True)
class Whose:
    """Which attempt it is that asks: of which task, in which of its lives, and what its sandbox is called."""

    task: str
    life: str
    attempt: int
    names: tuple[str, ...]


def digest_of(approval_id: str) -> str:
    """What stands for an approval's id in subjects and sources: workers choose ids freely."""
    return hashlib.sha256(approval_id.encode()).hexdigest()[:32]


def asked_of(event: Envelope[AgentApprovalRequested], at: datetime, of: Whose | None = None) -> Asked:
    """What an agent's worker asks, in this attempt. Raises `ContractError` for an id that no answer could name."""
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
    asked = Asked(
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
        return asked
    question = question_of(data, of.life, of.names)
    return asked.model_copy(update={"task": of.task, "life": of.life, "attempt": of.attempt, "question": question})


def _deadline(at: datetime, seconds: float | None) -> datetime | None:
    """When it expires; one that waits for longer than a year waits for ever."""
    year = timedelta(days=365).total_seconds()
    return None if seconds is None or seconds > year else at + timedelta(seconds=seconds)


def question_of(data: AgentApprovalRequested, life: str, names: Iterable[str]) -> str | None:
    """What stands for the question: the same tool for the same input, in one life of a task.

    An agent's sandbox, which may stand in its paths, is called otherwise in each attempt: its `names` are made one.
    None for an input that is not in the event whole, for two that begin alike are not the same.
    """
    if data.artifacts:
        return None
    text = json.dumps([life, data.tool, data.input], sort_keys=True, separators=(",", ":"))
    for name in sorted(names, key=len, reverse=True):
        text = text.replace(name, _ITS_OWN)
    return hashlib.sha256(text.encode()).hexdigest()[:32]
