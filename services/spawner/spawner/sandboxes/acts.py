"""What is done at a runtime, and written down afterwards."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from sandherd.contracts.states import SandboxState
from sandherd.telemetry import logs
from spawner.records.store import Held
from spawner.runtimes.contract import RuntimeFailedError
from spawner.sandboxes import decisions
from spawner.sandboxes.credentials import Mint
from spawner.sandboxes.facts import Facts, Rules
from spawner.sandboxes.leading import Leading
from spawner.sandboxes.pinned_secrets import with_pinned_secrets
from spawner.sandboxes.planning import Plans
from spawner.sandboxes.record import SandboxRecord
from spawner.sandboxes.runtimes import Runtimes
from spawner.tasks.record import TaskRecord

_AGAIN: Final = timedelta(seconds=1)
_log: Final = logs.get("steps")


@dataclass(frozen=True)
class Acts:
    """Asks runtimes. What was asked may be done though no answer came: each is asked again, and does it once."""

    leading: Leading
    runtimes: Runtimes
    minter: Mint
    plans: Plans
    rules: Rules

    async def spawn(self, held: Held[SandboxRecord], task: TaskRecord | None, begun: datetime) -> datetime | None:
        """Have it made. What can't be made now is tried again until the time for it is up; returns when."""
        live = self.leading.live
        try:
            held = await with_pinned_secrets(self.leading, held, task)
        except RuntimeFailedError as error:
            return await self._not_made(held, error, begun)
        plan = self.plans.make(held, task, self.minter, live.now())
        try:
            await self.runtimes.ask(held.record, lambda runtime: runtime.create(plan))
        except RuntimeFailedError as error:
            return await self._not_made(held, error, begun)
        now, isolation = live.now(), self.runtimes.of(held.record).capabilities.isolation
        await self.leading.note(held.record.key, lambda record: decisions.spawned(record, isolation, now))
        await live.change_task_of(held.record, lambda record: record)
        return None

    async def _not_made(self, held: Held[SandboxRecord], error: RuntimeFailedError, begun: datetime) -> datetime | None:
        now, sandbox = self.leading.live.now(), held.record
        if not error.permanent and now < begun + timedelta(seconds=self.rules.spawn_timeout):
            _log.warning("not made yet", sandbox=sandbox.sandbox, fault=error.fault, error=str(error))
            return now + _AGAIN
        _log.error("a sandbox could not be made", sandbox=sandbox.sandbox, fault=error.fault, error=str(error))

        def decide(record: SandboxRecord) -> SandboxRecord:
            if record.state is not SandboxState.REQUESTED:
                return record
            if record.keys:
                # It was made though that was never said: its worker was granted a credential. So it is ended in order.
                return decisions.stopping(record, error.fault, now, error=str(error), error_type=error.fault)
            return decisions.failed(record, str(error), error.fault, now)

        await self.leading.note(sandbox.key, decide)
        return None

    async def recover(self, held: Held[SandboxRecord], facts: Facts) -> None:
        """Counted first: a recovery that ends the spawner itself must not be tried for ever."""
        _log.warning("recovering", sandbox=held.record.sandbox, end=str(facts.seen and facts.seen.end))
        counted = await self.leading.note(
            held.record.key, lambda record: decisions.recovering(record, facts.now), publish=False
        )
        if counted:
            plan = self.plans.make(counted, facts.task, self.minter, facts.now)
            await self.runtimes.ask(counted.record, lambda runtime: runtime.recover(plan))

    async def pause(self, sandbox: SandboxRecord) -> None:
        """Have it frozen."""
        now = self.leading.live.now()
        try:
            await self.runtimes.ask(sandbox, lambda runtime: runtime.pause(sandbox.alias))
        except RuntimeFailedError as error:
            if not error.permanent:
                raise
            why = str(error)
            await self.leading.note(sandbox.key, lambda record: decisions.unfreezable(record, why, now))
            return
        await self.leading.note(sandbox.key, lambda record: decisions.paused(record, now))

    async def resume(self, sandbox: SandboxRecord) -> None:
        """Have it go on."""
        await self.runtimes.ask(sandbox, lambda runtime: runtime.resume(sandbox.alias))
        now = self.leading.live.now()
        await self.leading.note(sandbox.key, lambda record: decisions.resumed(record, now))

    async def stop(self, sandbox: SandboxRecord) -> None:
        """Have its worker end, and every process with it."""
        grace = self.plans.stop_grace
        await self.runtimes.ask(sandbox, lambda runtime: runtime.stop(sandbox.alias, grace), longer=grace)
        seen = await self.runtimes.look(sandbox)
        code = seen.end.code if seen and seen.end else None
        await self.leading.note(sandbox.key, lambda record: decisions.stopped(record, code))

    async def clear(self, sandbox: SandboxRecord, *, keep: bool) -> None:
        """Have what it left removed, or put aside."""
        unit = sandbox.alias
        await self.runtimes.ask(sandbox, lambda runtime: runtime.keep(unit) if keep else runtime.remove(unit))
