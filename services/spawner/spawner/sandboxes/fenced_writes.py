"""Writes of the reconciling replica: only while it holds its lease, and never over writes of a later lease holder."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from sandherd.bus.lease import LeaseLostError
from spawner.live_state import LiveState
from spawner.records.store import StoredRecord
from spawner.sandboxes import sandbox_transitions
from spawner.sandboxes.sandbox_record import SandboxRecord
from spawner.tasks.task_record import TaskRecord

DecideSandbox = Callable[[SandboxRecord], SandboxRecord]


class LeaseState(Protocol):
    """The part of a lease (`sandherd.bus.lease.Lease`) that is used here."""

    fence: int

    @property
    def held(self) -> bool:
        """Whether we hold it now."""

    def check(self) -> None:
        """Raise `LeaseLostError` unless we hold it."""


@dataclass(frozen=True)
class FencedWriter:
    """The reconciler's writes. Each contains its fencing token; all raise `LeaseLostError` once the lease is lost.

    A process that was suspended for longer than its lease does not know that; `check`, which reads the clock, detects
    it. If the process was suspended just after the check, the newer fencing token in the record prevents the write.
    """

    live: LiveState
    lease: LeaseState

    def check(self) -> None:
        """Check the lease. Call it before any externally visible action."""
        self.lease.check()

    async def decide(self, read: StoredRecord[SandboxRecord], decide: DecideSandbox) -> bool:
        """Change a sandbox only if it is unchanged since the decision. Returns whether it was changed."""
        self.check()
        changed = self.live.allowed(read.record, self._stamped(decide, read.revision))
        if changed is read.record:
            return False
        written = await self.live.sandboxes.replace(read, changed)
        if written:
            await self.live.flush_sandbox(written)
        return written is not None

    async def note(
        self, key: str, decide: DecideSandbox, *, publish: bool = True
    ) -> StoredRecord[SandboxRecord] | None:
        """Record an action that was executed, even if the sandbox has changed since."""
        self.check()

        def decide_stamped(record: SandboxRecord, revision: int) -> SandboxRecord:
            self.check()
            return self.live.allowed(record, self._stamped(decide, revision))

        held = await self.live.sandboxes.change(key, decide_stamped)
        return await self.live.flush_sandbox(held) if held and publish else held

    async def decide_task(self, read: StoredRecord[TaskRecord], decide: Callable[[TaskRecord], TaskRecord]) -> bool:
        """Change a task only if it is unchanged since the decision. Returns whether it was changed."""
        self.check()
        changed = self.live.allowed(read.record, decide)
        if changed is read.record:
            return False
        written = await self.live.tasks.replace(read, changed)
        if written:
            await self.live.tasks.flush(written)
        return written is not None

    def _stamped(self, decide: DecideSandbox, revision: int) -> DecideSandbox:
        def decide_stamped(record: SandboxRecord) -> SandboxRecord:
            if record.led_by > self.lease.fence:
                raise LeaseLostError(f"{record.sandbox} is now reconciled by another replica")
            changed = decide(record)
            return (
                changed
                if changed is record
                else sandbox_transitions.with_reconciler_fence(changed, revision, self.lease.fence)
            )

        return decide_stamped
