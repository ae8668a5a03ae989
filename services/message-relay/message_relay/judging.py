"""How an approval is decided: by an answer, by its time, by its agent, or by the next attempt. Pure."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from message_relay.asked import LONGEST_REASON, Asked, Decision, Ref
from message_relay.deciding import Ended
from sandherd.contracts.commands import AnswerApproval
from sandherd.contracts.errors import Code
from sandherd.contracts.states import ApprovalState, checked

LONGEST_WAIT: Final = timedelta(days=7)
"""So long an answer may wait for a worker that is away; as long as INBOX keeps anything."""
WITHDRAWN: Final = "withdrawn"
ASKED_AGAIN: Final = "asked_again"
_DEFAULTS: Final = {"allow": "granted", "deny": "denied"}


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why an answer does not count, for people and for programs."""

    code: Code
    reason: str


def refusal(asked: Asked | None, answer: AnswerApproval, now: datetime, gone: Ended | None) -> Refusal | None:
    """Why an answer does not count; None if it does. Nobody in a sandbox that is `gone` waits for one."""
    if gone is not None:
        return Refusal(Code.REFUSED, gone.reason)
    if asked is None:
        return Refusal(Code.NOT_FOUND, f"the agent in {answer.sandbox} asks for no approval {answer.approval_id}")
    if asked.decision is not None:
        return Refusal(Code.CONFLICT, decided_already(asked, asked.decision))
    if _is_late(asked, now):
        return Refusal(Code.CONFLICT, f"{_name(asked)} expired at {asked.expires_at:%Y-%m-%d %H:%M:%S} UTC")
    return None


def decided_already(asked: Asked, decision: Decision) -> str:
    """What has become of it, for people to read."""
    at = f"{decision.at:%Y-%m-%d %H:%M:%S} UTC"
    if decision.outcome == WITHDRAWN:
        return f"{_name(asked)} was withdrawn at {at}: {decision.reason}"
    by = f" by {decision.by}" if decision.by else ""
    what = "expired" if decision.state is ApprovalState.EXPIRED else f"was {decision.state}{by}"
    return f"{_name(asked)} {what} at {at} already"


def _name(asked: Asked) -> str:
    return f"approval {asked.approval_id} of {asked.sandbox}"


def _is_late(asked: Asked, now: datetime) -> bool:
    return asked.expires_at is not None and now >= asked.expires_at


def answered(asked: Asked, answer: AnswerApproval, at: datetime) -> Asked:
    """Decided by an answer."""
    state = ApprovalState.GRANTED if answer.granted else ApprovalState.DENIED
    decision = Decision(state=state, at=at, answer=answer.message, by=answer.answered_by, reason=answer.reason)
    return _decided(asked, decision).model_copy(update={"hand": "kept"})


def is_decided_by(asked: Asked, answer: AnswerApproval) -> bool:
    """Whether it was this very answer, given again or handled again by a relay that was killed in between."""
    wanted = ApprovalState.GRANTED if answer.granted else ApprovalState.DENIED
    decision = asked.decision
    return decision is not None and (decision.answer, decision.state) == (answer.message, wanted)


def is_forgotten(asked: Asked, now: datetime) -> bool:
    """Whether an answer is kept that INBOX keeps no more, as no relay was there when its time was over."""
    patience = LONGEST_WAIT + timedelta(days=1)
    return asked.decision is not None and asked.waits and now >= asked.decision.at + patience


def lapsed(asked: Asked, now: datetime, *, ended: bool) -> Asked | None:
    """Decided by nobody, as its time or its sandbox is over; None if it still waits."""
    if _is_late(asked, now):
        outcome = _DEFAULTS[asked.on_timeout or "deny"]
    elif ended:
        outcome = "ended"
    else:
        return None
    return _decided(asked, Decision(state=ApprovalState.EXPIRED, at=now, outcome=outcome))


def withdrawn(asked: Asked, reason: str, now: datetime) -> Asked | None:
    """As its agent waits for it no more; None if that changes nothing. Nor will an answer that waits be of use."""
    if asked.next is None and asked.decision is None:
        decision = Decision(
            state=ApprovalState.EXPIRED, at=now, outcome=WITHDRAWN, reason=reason[:LONGEST_REASON] or None
        )
        return _decided(asked, decision)
    if asked.next is None and asked.hand in {"kept", "handing"}:
        return asked.model_copy(update={"hand": "over"})
    return None


def taken_over(asked: Asked, by: Ref, now: datetime) -> Asked | None:
    """As the next attempt asks the same: that takes its place, also for an answer that no worker has got.

    None if there is nothing to take: it is over, or an agent may have heard the answer, which is good for once.
    """
    if asked.next is not None or _is_late(asked, now):
        return None
    if asked.decision is not None:
        return asked.model_copy(update={"next": by, "hand": "over"}) if asked.hand == "kept" else None
    why = f"asked again in {by.sandbox} as {by.approval_id}"
    decision = Decision(state=ApprovalState.EXPIRED, at=now, outcome=ASKED_AGAIN, reason=why)
    return _decided(asked, decision).model_copy(update={"next": by})


def inheriting(asked: Asked, before: Asked) -> Asked | None:
    """As decided by the answer that was given to what it has taken the place of; None if it inherits none."""
    if asked.decision is not None or before.decision is None or before.decision.answer is None:
        return None
    return _decided(asked, before.decision).model_copy(update={"hand": "kept"})


def _decided(asked: Asked, decision: Decision) -> Asked:
    checked(asked.decision.state if asked.decision else ApprovalState.PENDING, decision.state)
    return asked.model_copy(update={"decision": decision})
