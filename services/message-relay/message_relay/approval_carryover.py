"""Decides whether an approval outlives its sandbox: if a worker is lost, the next attempt may request the same."""

from message_relay.approval import Approval, AttemptRef, Requester
from message_relay.approval_store import ApprovalStore
from message_relay.delivery_rules import NoRecipient, ended
from message_relay.record_reader import sandbox_record, task_record
from sandherd.bus.connection import Bus
from sandherd.contracts.records import SharedSandboxRecord, SharedTaskRecord


class ApprovalCarryover:
    """Reads the state of an approval's sandbox and task."""

    def __init__(self, bus: Bus, approvals: ApprovalStore) -> None:
        self._bus = bus
        self._approvals = approvals

    async def attempt_in(self, project: str, sandbox: str) -> AttemptRef | None:
        """The attempt that runs in a sandbox; None if it can't be determined with certainty."""
        known = await sandbox_record(self._bus, project, sandbox)
        if known is None or known.task is None:
            return None
        return attempt_of(sandbox, known, await task_record(self._bus, project, known.task))

    async def ended(self, approval: Approval | None, project: str, sandbox: str) -> NoRecipient | None:
        """The reason why no agent will ever need the answer; None if this agent or the next attempt's may need it."""
        no_recipient = ended(sandbox, await sandbox_record(self._bus, project, sandbox))
        return None if no_recipient is None or (approval is not None and await self.waits(approval)) else no_recipient

    async def waits(self, approval: Approval) -> bool:
        """Whether the next attempt may request the same: the task has not ended, and no newer request replaces it."""
        if approval.question is None or approval.task is None:
            return False
        task = await task_record(self._bus, approval.project, approval.task)
        if task is None or task.life != approval.life or task.ended:
            return False
        return not outdated(approval, (await self._approvals.latest_attempt(approval)).requester)


def attempt_of(sandbox: str, known: SharedSandboxRecord, task: SharedTaskRecord | None) -> AttemptRef | None:
    """The attempt, from the records of its sandbox and task. Pure.

    None if the task does not list the sandbox, which may belong to an earlier task of that name.
    """
    if known.task is None or task is None or sandbox not in task.sandboxes:
        return None
    names = (sandbox,) if known.unit is None else (sandbox, known.unit)
    return AttemptRef(task=known.task, life=task.life, attempt=known.attempt, names=names)


def outdated(approval: Approval, last: Requester | None) -> bool:
    """Whether `last`, the latest request of the same question, replaces the approval. Pure."""
    return last is not None and last.ref != approval.ref and last.attempt >= approval.attempt
