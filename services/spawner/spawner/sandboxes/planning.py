"""From a sandbox's record and its task to what a runtime is given."""

from dataclasses import dataclass
from datetime import datetime

from spawner.records.store import Held
from spawner.runtimes.contract import RuntimeFailedError, RuntimeFault, SandboxPlan
from spawner.sandboxes.credentials import Mint
from spawner.sandboxes.decisions import JOINER_MARGIN, joiner_end
from spawner.sandboxes.record import SandboxRecord
from spawner.tasks.record import TaskRecord


@dataclass(frozen=True)
class Plans:
    """What goes into every sandbox's plan. Times are in seconds."""

    nats_url: str
    heartbeat_interval: float
    stop_grace: float
    joiner_life: float
    """Of a sandbox that has no end of its own."""
    max_work_bytes: int = 0

    def make(self, held: Held[SandboxRecord], task: TaskRecord | None, minter: Mint, now: datetime) -> SandboxPlan:
        """All that a runtime needs for this sandbox. Raises `RuntimeFailedError` if its task is gone."""
        sandbox = held.record
        spec = sandbox.spec or (task.spec if task else None)
        if spec is None:
            raise RuntimeFailedError(RuntimeFault.REFUSED, f"the task of {sandbox.sandbox} is gone")
        return SandboxPlan(
            project=sandbox.project,
            sandbox=sandbox.sandbox,
            unit=sandbox.alias,
            task=sandbox.task,
            attempt=sandbox.attempt,
            fence=sandbox.fence_of(held.revision),
            spec=spec,
            limits=sandbox.limits,
            previous=sandbox.previous,
            max_work_bytes=self.max_work_bytes,
            joiner=minter.mint_joiner(sandbox.project, sandbox.sandbox, self._joiner_life(sandbox, now)),
            nats_url=self.nats_url,
            heartbeat_interval=self.heartbeat_interval,
            stop_grace=self.stop_grace,
            traceparent=sandbox.traceparent,
        )

    def _joiner_life(self, sandbox: SandboxRecord, now: datetime) -> float:
        """As long as the sandbox may live, and a while to recover it; that while also for one whose time is over."""
        until = joiner_end(sandbox.expires_at)
        if until is None:
            return self.joiner_life
        return max(JOINER_MARGIN, until - now).total_seconds()
