"""What is written of a sandbox and its task, each time over what the decision was made from."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from sandherd.contracts.failures import ErrorType
from sandherd.telemetry import logs
from spawner.records.store import Held
from spawner.sandboxes import decisions
from spawner.sandboxes.credentials import Mint, Revoke
from spawner.sandboxes.leading import Leading
from spawner.sandboxes.moves import BeginStop, EndTask, Fail
from spawner.sandboxes.planning import Plans
from spawner.sandboxes.record import SandboxRecord
from spawner.tasks import decisions as of_task
from spawner.tasks.record import TaskRecord

_log: Final = logs.get("steps")


@dataclass(frozen=True)
class Verdicts:
    """Every write that follows from a decision. One that came too late changes nothing: it is decided anew."""

    leading: Leading
    revoker: Revoke
    minter: Mint
    plans: Plans

    async def begin_stop(self, held: Held[SandboxRecord], step: BeginStop, now: datetime) -> None:
        """It is to be ended, and why."""
        await self.leading.decide(
            held,
            lambda record: decisions.stopping(
                record, step.reason, now, error=step.error, error_type=step.reason if step.error else None
            ),
        )

    async def end_task(self, sandbox: SandboxRecord, task: Held[TaskRecord], step: EndTask, now: datetime) -> None:
        """The attempt has failed; there may be another."""
        if step.error_type == ErrorType.SANDBOX_LOST:
            _log.warning("a sandbox was lost", sandbox=sandbox.sandbox, task=task.record.task, error=step.error)
        await self.leading.decide_task(
            task, lambda record: of_task.attempt_failed(record, step.error, step.error_type, now)
        )

    async def fail(self, held: Held[SandboxRecord], step: Fail) -> None:
        """It could not be made, or is lost: none of its credentials is good any more."""
        now = self.leading.live.now()
        await self._revoke(held.record, now)
        failed = await self.leading.decide(
            held, lambda record: decisions.failed(record, step.error, step.error_type, now)
        )
        if failed and step.error_type == ErrorType.SANDBOX_LOST:
            _log.warning("a sandbox was lost", sandbox=held.record.sandbox)
            self.leading.live.meters.count("sandherd_sandboxes_lost_total", runtime=held.record.runtime)

    async def finish(self, held: Held[SandboxRecord], *, unsaid: bool) -> None:
        """It is gone. One that was granted a credential in between is asked for again, with that one."""
        now = self.leading.live.now()
        await self._revoke(held.record, now)
        if unsaid:
            _log.error("something of this sandbox was never said", sandbox=held.record.sandbox)
        await self.leading.decide(held, lambda record: decisions.terminated(record, unsaid=unsaid, now=now))

    async def _revoke(self, sandbox: SandboxRecord, now: datetime) -> None:
        self.leading.check()
        good = {key.public_key: key.expires_at for key in sandbox.keys if key.expires_at > now}
        joiner = self.minter.joiner_key(sandbox.project, sandbox.sandbox, sandbox.joiner_serial)
        await self.revoker.revoke(good | {joiner: self._joiner_end(sandbox, now)}, now)

    def _joiner_end(self, sandbox: SandboxRecord, now: datetime) -> datetime:
        """Not before any that was made for it expires, also where its time to live was changed meanwhile."""
        latest = now + timedelta(seconds=self.plans.joiner_seconds(sandbox, now) + 1)
        return max(latest, sandbox.joiner_until or latest)
