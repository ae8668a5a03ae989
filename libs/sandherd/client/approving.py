"""Giving agents the leave that they ask for, or denying it."""

from typing import Final

from sandherd.client import sending
from sandherd.client.connection import Connection
from sandherd.client.errors import HerdError, checked_name, made
from sandherd.client.sending import Delivery
from sandherd.contracts.commands import AnswerApproval
from sandherd.contracts.errors import Code
from sandherd.contracts.names import new_name
from sandherd.contracts.requests import ApprovalList, AskApprovals
from sandherd.contracts.states import ApprovalState, MessageState

ANSWER_SECONDS: Final = 30.0


class Approving:
    """The part of `Herd` that is about approvals. Every method raises `HerdError`."""

    connection: Connection

    async def approvals(
        self,
        *,
        sandbox: str | None = None,
        state: ApprovalState | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> ApprovalList:
        """What agents ask leave for, newest first, and what came of it."""
        name = None if sandbox is None else checked_name(sandbox, "sandbox")
        return await self.connection.ask(made(AskApprovals, sandbox=name, state=state, limit=limit, cursor=cursor))

    async def grant(
        self,
        sandbox: str,
        approval_id: str,
        *,
        reason: str | None = None,
        by: str | None = None,
        timeout: float = ANSWER_SECONDS,
    ) -> Delivery:
        """Let the agent in a sandbox do what it asks for; returns when it knows.

        Raises `HerdError`: `not_found` if it does not ask that, `conflict` if that was answered or has expired,
        `refused` if the sandbox is over or the agent would not have it; and `unavailable` after `timeout` seconds,
        when the answer stands and waits for a worker that is away.
        """
        return await give(self.connection, answer(sandbox, approval_id, granted=True, reason=reason, by=by), timeout)

    async def deny(
        self,
        sandbox: str,
        approval_id: str,
        *,
        reason: str | None = None,
        by: str | None = None,
        timeout: float = ANSWER_SECONDS,
    ) -> Delivery:
        """Forbid it, with a reason for the agent to read. As `grant` otherwise."""
        return await give(self.connection, answer(sandbox, approval_id, granted=False, reason=reason, by=by), timeout)


def answer(sandbox: str, approval_id: str, *, granted: bool, reason: str | None, by: str | None) -> AnswerApproval:
    """A new answer. Raises `HerdError` naming the field that is wrong."""
    return made(
        AnswerApproval,
        message=new_name("msg"),
        sandbox=checked_name(sandbox, "sandbox"),
        approval_id=approval_id,
        granted=granted,
        reason=reason,
        answered_by=by,
    )


async def give(connection: Connection, command: AnswerApproval, timeout: float) -> Delivery:
    """Give an answer, and wait until the agent has it. Raises `HerdError` if it does not count, or came too late."""
    delivery = await sending.deliver(connection, command, timeout)
    if delivery.state is MessageState.ACKNOWLEDGED:
        return delivery
    expired = f"approval {command.approval_id} of {command.sandbox} expired before its worker could be told"
    raise HerdError.of(
        _code_of(delivery),
        delivery.reason or expired,
        field="approval_id",
        remedy=f"look with `sandherd approvals list --all --sandbox {command.sandbox}`",
    )


def _code_of(delivery: Delivery) -> Code:
    known = next((code for code in Code if code == delivery.code), None)
    return known or (Code.CONFLICT if delivery.state is MessageState.EXPIRED else Code.REFUSED)
