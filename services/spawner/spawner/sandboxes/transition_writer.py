"""Writes the state changes of a sandbox and its task, conditional on the revisions that the decision has read."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from sandherd.contracts.failures import ErrorType
from sandherd.telemetry import logs
from spawner.records.store import StoredRecord
from spawner.sandboxes import sandbox_transitions
from spawner.sandboxes.credentials import Mint, Revoke
from spawner.sandboxes.fenced_writes import FencedWriter
from spawner.sandboxes.lifecycle_steps import BeginStop, EndTask, Fail
from spawner.sandboxes.sandbox_plans import SandboxPlans
from spawner.sandboxes.sandbox_record import SandboxRecord
from spawner.tasks import task_transitions as of_task
from spawner.tasks.task_record import TaskRecord

_log: Final = logs.get("record_transitions")


@dataclass(frozen=True)
class TransitionWriter:
    """Writes the result of a decision. If the record has changed since, nothing is written. A new decision follows."""

    writer: FencedWriter
    revoker: Revoke
    minter: Mint
    plans: SandboxPlans

    async def begin_stop(self, held: StoredRecord[SandboxRecord], step: BeginStop, now: datetime) -> None:
        """Record that the sandbox is ending, and why."""
        await self.writer.decide(
            held,
            lambda record: sandbox_transitions.stopping(
                record, step.reason, now, error=step.error, error_type=step.reason if step.error else None
            ),
        )

    async def end_task(
        self, sandbox: SandboxRecord, task: StoredRecord[TaskRecord], step: EndTask, now: datetime
    ) -> None:
        """Record that the attempt failed; it may be retried."""
        if step.error_type == ErrorType.SANDBOX_LOST:
            _log.warning("sandbox lost", sandbox=sandbox.sandbox, task=task.record.task, error=step.error)
        await self.writer.decide_task(
            task, lambda record: of_task.attempt_failed(record, step.error, step.error_type, now)
        )

    async def fail(self, held: StoredRecord[SandboxRecord], step: Fail) -> None:
        """Revoke all credentials of a sandbox that could not be created, or is lost, and record that."""
        now = self.writer.live.now()
        await self._revoke(held.record, now)
        failed = await self.writer.decide(
            held, lambda record: sandbox_transitions.failed(record, step.error, step.error_type, now)
        )
        if failed and step.error_type == ErrorType.SANDBOX_LOST:
            _log.warning("sandbox lost", sandbox=held.record.sandbox)
            self.writer.live.meters.count("sandherd_sandboxes_lost_total", runtime=held.record.runtime)

    async def finish(self, held: StoredRecord[SandboxRecord], *, unsaid: bool) -> None:
        """Revoke all credentials of a sandbox and record that it has ended.

        Nothing is recorded if a credential was issued meanwhile: this is then repeated.
        """
        now = self.writer.live.now()
        await self._revoke(held.record, now)
        if unsaid:
            _log.error("sandbox ended with undelivered events", sandbox=held.record.sandbox)
        await self.writer.decide(held, lambda record: sandbox_transitions.terminated(record, unsaid=unsaid, now=now))

    async def _revoke(self, sandbox: SandboxRecord, now: datetime) -> None:
        self.writer.check()
        valid_keys = {key.public_key: key.expires_at for key in sandbox.keys if key.expires_at > now}
        joiner = self.minter.joiner_key(sandbox.project, sandbox.sandbox, sandbox.joiner_serial)
        await self.revoker.revoke(valid_keys | {joiner: self._joiner_end(sandbox, now)}, now)

    def _joiner_end(self, sandbox: SandboxRecord, now: datetime) -> datetime:
        """A time at which the joiner's last credential has expired, even if the sandbox's lifetime was changed."""
        latest = now + timedelta(seconds=self.plans.joiner_seconds(sandbox, now) + 1)
        return max(latest, sandbox.joiner_until or latest)
