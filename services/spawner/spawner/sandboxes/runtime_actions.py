"""Actions on sandboxes in their runtimes. The record is changed after each action."""

import asyncio
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

from sandherd.contracts.requests import CredentialGrant
from sandherd.contracts.states import SandboxState
from sandherd.telemetry import logs
from spawner.records.base_record import StoreUnavailableError
from spawner.records.store import StoredRecord
from spawner.runtimes.contract import RuntimeFailedError
from spawner.sandboxes import sandbox_transitions
from spawner.sandboxes.credentials import Mint, first_grant
from spawner.sandboxes.fenced_writes import FencedWriter
from spawner.sandboxes.lifecycle_facts import LifecycleFacts, LifecycleTimeouts
from spawner.sandboxes.pinned_secrets import with_pinned_secrets
from spawner.sandboxes.runtime_calls import RuntimeCaller
from spawner.sandboxes.sandbox_plans import SandboxPlans
from spawner.sandboxes.sandbox_record import SandboxRecord
from spawner.tasks.task_record import TaskRecord

_RETRY_DELAY: Final = timedelta(seconds=1)
_log: Final = logs.get("runtime_actions")


@dataclass(frozen=True)
class RuntimeActions:
    """Calls runtimes. A call without a reply may have been executed. It is repeated, because calls are idempotent."""

    writer: FencedWriter
    runtimes: RuntimeCaller
    minter: Mint
    plans: SandboxPlans
    rules: LifecycleTimeouts

    async def spawn(
        self, held: StoredRecord[SandboxRecord], task: TaskRecord | None, begun: datetime
    ) -> datetime | None:
        """Create the sandbox. A transient failure is retried until the spawn timeout; returns when to retry."""
        live = self.writer.live
        try:
            held = await with_pinned_secrets(self.writer, held, task)
        except RuntimeFailedError as error:
            # If no secrets are stored, the sandbox was never created, because they are stored before that.
            return await self._creation_failed(held, error, begun, created=held.record.sealed is not None)
        plan = self.plans.make(held, task, self.minter, live.now())
        plan = replace(plan, grant=await self._first_grant(held.record))
        try:
            await self.runtimes.call(held.record, lambda runtime: runtime.create(plan))
        except RuntimeFailedError as error:
            return await self._creation_failed(held, error, begun, created=True)
        now, isolation = live.now(), self.runtimes.of(held.record).capabilities.isolation
        await self.writer.note(held.record.key, lambda record: sandbox_transitions.spawned(record, isolation, now))
        await live.flush_task_of(held.record)
        return None

    async def _first_grant(self, sandbox: SandboxRecord) -> CredentialGrant | None:
        """The credential that a warm sandbox's worker gets with its identity; None: it has to request one.

        The records are read again after its key was stored: another replica may have ended the sandbox or its task, and
        this replica's copies may not show that yet.
        """
        if sandbox.unit is None or not sandbox.keys:
            return None
        live = self.writer.live
        try:
            held, task = await asyncio.gather(live.sandboxes.load_closed(sandbox.key), live.load_task(sandbox))
        except StoreUnavailableError:
            return None
        if held is None:
            return None
        return first_grant(held.record, task.record if task else None, self.minter, live.now())

    async def _creation_failed(
        self, held: StoredRecord[SandboxRecord], error: RuntimeFailedError, begun: datetime, *, created: bool
    ) -> datetime | None:
        """Decide when to retry, or record the failure. `created`: whether a runtime may have created the sandbox."""
        now, sandbox = self.writer.live.now(), held.record
        if not error.permanent and now < begun + timedelta(seconds=self.rules.spawn_timeout):
            _log.warning("sandbox not created, retrying", sandbox=sandbox.sandbox, fault=error.fault, error=str(error))
            return now + _RETRY_DELAY
        _log.error("sandbox not created", sandbox=sandbox.sandbox, fault=error.fault, error=str(error))

        def decide(record: SandboxRecord) -> SandboxRecord:
            if record.state is not SandboxState.REQUESTED:
                return record
            if record.keys and created:
                # Its worker has a credential, so it was created, but the reply was lost: it has to be stopped first.
                return sandbox_transitions.stopping(record, error.fault, now, error=str(error), error_type=error.fault)
            return sandbox_transitions.failed(record, str(error), error.fault, now)

        await self.writer.note(sandbox.key, decide)
        return None

    async def recover(self, held: StoredRecord[SandboxRecord], facts: LifecycleFacts) -> None:
        """Recover the sandbox, after counting that: a recovery that crashes the spawner must not be retried forever."""
        _log.warning("recovering sandbox", sandbox=held.record.sandbox, end=str(facts.seen and facts.seen.end))
        counted = await self.writer.note(
            held.record.key, lambda record: sandbox_transitions.recovering(record, facts.now), publish=False
        )
        if counted:
            plan = self.plans.make(counted, facts.task, self.minter, facts.now)
            await self.runtimes.call(counted.record, lambda runtime: runtime.recover(plan))

    async def pause(self, sandbox: SandboxRecord) -> None:
        """Freeze the sandbox. If its runtime refuses that, record it."""
        now = self.writer.live.now()
        try:
            await self.runtimes.call(sandbox, lambda runtime: runtime.pause(sandbox.runtime_unit))
        except RuntimeFailedError as error:
            if not error.permanent:
                raise
            why = str(error)
            await self.writer.note(sandbox.key, lambda record: sandbox_transitions.unfreezable(record, why, now))
            return
        await self.writer.note(sandbox.key, lambda record: sandbox_transitions.paused(record, now))

    async def resume(self, sandbox: SandboxRecord) -> None:
        """Unfreeze the sandbox."""
        await self.runtimes.call(sandbox, lambda runtime: runtime.resume(sandbox.runtime_unit))
        now = self.writer.live.now()
        await self.writer.note(sandbox.key, lambda record: sandbox_transitions.resumed(record, now))

    async def stop(self, sandbox: SandboxRecord) -> None:
        """Stop the worker and all processes of the sandbox."""
        grace = self.plans.stop_grace
        await self.runtimes.call(sandbox, lambda runtime: runtime.stop(sandbox.runtime_unit, grace), longer=grace)
        seen = await self.runtimes.observe(sandbox)
        code = seen.end.code if seen and seen.end else None
        await self.writer.note(sandbox.key, lambda record: sandbox_transitions.stopped(record, code))

    async def clear(self, sandbox: SandboxRecord, *, keep: bool) -> None:
        """Remove the sandbox from its runtime; with `keep`, quarantine it instead."""
        unit = sandbox.runtime_unit
        await self.runtimes.call(sandbox, lambda runtime: runtime.quarantine(unit) if keep else runtime.remove(unit))
