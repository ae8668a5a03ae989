"""How the one that leads writes: only while it holds its lease, and never over what a later one has written."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from sandherd.bus.lease import LeaseLostError
from spawner.live import Live
from spawner.records.store import Held
from spawner.sandboxes import decisions
from spawner.sandboxes.record import SandboxRecord
from spawner.tasks.record import TaskRecord

DecideSandbox = Callable[[SandboxRecord], SandboxRecord]


class HeldLease(Protocol):
    """What is asked of a lease (`sandherd.bus.lease.Lease`)."""

    fence: int

    @property
    def held(self) -> bool:
        """Whether it is ours at this moment."""

    def check(self) -> None:
        """Raise `LeaseLostError` unless it is."""


@dataclass(frozen=True)
class Leading:
    """The writes of the keeper. Each bears its fencing token, and all raise `LeaseLostError` once it is another's turn.

    A process that was stopped for longer than its lease goes on as if nothing had been: its clock tells it here, and
    where it was stopped just behind that look, the record does, for it bears the token of the one that leads since.
    """

    live: Live
    lease: HeldLease

    def check(self) -> None:
        """Before anything is done that others would see."""
        self.lease.check()

    async def decide(self, read: Held[SandboxRecord], decide: DecideSandbox) -> bool:
        """Change a sandbox as it was when it was decided about, or not at all. Returns whether it was."""
        self.check()
        changed = self.live.allowed(read.record, self._stamped(decide, read.revision))
        if changed is read.record:
            return False
        written = await self.live.sandboxes.replace(read, changed)
        if written:
            await self.live.flush_sandbox(written)
        return written is not None

    async def note(self, key: str, decide: DecideSandbox, *, publish: bool = True) -> Held[SandboxRecord] | None:
        """Write down what was done, whatever else has become of the sandbox meanwhile."""
        self.check()

        def decide_stamped(record: SandboxRecord, revision: int) -> SandboxRecord:
            self.check()
            return self.live.allowed(record, self._stamped(decide, revision))

        held = await self.live.sandboxes.change(key, decide_stamped)
        return await self.live.flush_sandbox(held) if held and publish else held

    async def decide_task(self, read: Held[TaskRecord], decide: Callable[[TaskRecord], TaskRecord]) -> bool:
        """Change a task as it was when it was decided about, or not at all. Returns whether it was."""
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
                raise LeaseLostError(f"{record.sandbox} is led by another since")
            changed = decide(record)
            return changed if changed is record else decisions.led(changed, revision, self.lease.fence)

        return decide_stamped
