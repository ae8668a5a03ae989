"""Lists, grants and denies approval requests of agents."""

from typing import TYPE_CHECKING, Final

from sandherd.client.connection import Connection
from sandherd.client.errors import HerdError, checked_name, validated
from sandherd.contracts import requests
from sandherd.contracts.errors import Code
from sandherd.contracts.names import new_name
from sandherd.contracts.states import ApprovalState, MessageState

if TYPE_CHECKING:
    from sandherd.client.messages import MessageOutcome
    from sandherd.contracts.commands import AnswerApproval

ANSWER_SECONDS: Final = 30.0
"""The default time to wait until the agent has an answer."""


class ApprovalOperations:
    """The approval methods of `Herd`. Every method raises `HerdError`."""

    connection: Connection

    async def approvals(
        self,
        *,
        sandbox: str | None = None,
        state: ApprovalState | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> "requests.ApprovalList":
        """Approval requests, newest first, with their outcomes."""
        name = None if sandbox is None else checked_name(sandbox, "sandbox")
        return await self.connection.request(
            validated(requests.ListApprovals, sandbox=name, state=state, limit=limit, cursor=cursor)
        )

    async def grant(
        self,
        sandbox: str,
        approval_id: str,
        *,
        reason: str | None = None,
        by: str | None = None,
        timeout: float = ANSWER_SECONDS,
    ) -> "MessageOutcome":
        """Grant an approval request. Returns when the agent has the answer.

        Raises `HerdError`: `not_found` if there is no such request, `conflict` if it was answered or has expired,
        `refused` if the sandbox has ended or the worker refused the answer, and `unavailable` after `timeout` seconds,
        when the answer remains stored until the worker is available.
        """
        return await send_answer(
            self.connection, answer(sandbox, approval_id, granted=True, reason=reason, by=by), timeout
        )

    async def deny(
        self,
        sandbox: str,
        approval_id: str,
        *,
        reason: str | None = None,
        by: str | None = None,
        timeout: float = ANSWER_SECONDS,
    ) -> "MessageOutcome":
        """Deny an approval request, with a reason for the agent. Otherwise like `grant`."""
        return await send_answer(
            self.connection, answer(sandbox, approval_id, granted=False, reason=reason, by=by), timeout
        )


def answer(sandbox: str, approval_id: str, *, granted: bool, reason: str | None, by: str | None) -> "AnswerApproval":
    """A new answer. Raises `HerdError`, which names the invalid field."""
    from sandherd.contracts.commands import AnswerApproval

    return validated(
        AnswerApproval,
        message=new_name("msg"),
        sandbox=checked_name(sandbox, "sandbox"),
        approval_id=approval_id,
        granted=granted,
        reason=reason,
        answered_by=by,
    )


async def send_answer(connection: Connection, command: "AnswerApproval", timeout: float) -> "MessageOutcome":
    """Send an answer, and wait until the agent has it. Raises `HerdError` if it was rejected or has expired."""
    from sandherd.client import messages

    delivery = await messages.deliver(connection, command, timeout)
    if delivery.state is MessageState.ACKNOWLEDGED:
        return delivery
    expired = f"approval {command.approval_id} of {command.sandbox} expired before it was delivered to its worker"
    raise HerdError.of(
        _code_of(delivery),
        delivery.reason or expired,
        field="approval_id",
        remedy=f"see `sandherd approvals list --all --sandbox {command.sandbox}`",
    )


def _code_of(delivery: "MessageOutcome") -> Code:
    contract_code = next((code for code in Code if code == delivery.code), None)
    return contract_code or (Code.CONFLICT if delivery.state is MessageState.EXPIRED else Code.REFUSED)
