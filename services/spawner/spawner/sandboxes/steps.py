"""Doing what `lifecycle.next_step` says, one step at a time; a crash after any of them is no matter."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from sandherd.contracts.states import SandboxState
from sandherd.telemetry import logs
from sandherd.telemetry.traces import span
from spawner.live import Live
from spawner.records.store import Held
from spawner.runtimes.contract import Runtime, RuntimeFailedError, RuntimeFault, SandboxPlan, Seen
from spawner.sandboxes import decisions, lifecycle
from spawner.sandboxes.credentials import Mint, Revoke
from spawner.sandboxes.lifecycle import (
    BeginStop,
    Clear,
    EndTask,
    Facts,
    Finish,
    Recover,
    Rest,
    Rules,
    Spawn,
    Step,
    Stop,
)
from spawner.sandboxes.record import SandboxRecord
from spawner.tasks import decisions as of_task
from spawner.tasks.record import TaskRecord

_log: Final = logs.get("steps")


@dataclass(frozen=True)
class Plans:
    """What goes into every sandbox's plan. Times are in seconds."""

    nats_url: str
    heartbeat_interval: float
    stop_grace: float
    joiner_life: float
    max_work_bytes: int = 0


@dataclass(frozen=True)
class Steps:
    """What leading a sandbox needs. `settled` says whether every agent event that the broker has was taken in."""

    live: Live
    runtimes: Mapping[str, Runtime]
    minter: Mint
    revoker: Revoke
    plans: Plans
    rules: Rules
    settled: Callable[[], Awaitable[bool]]
    since: datetime
    """When this spawner began."""

    async def lead(self, key: str) -> datetime | None:
        """Do all that can be done now. Returns when there may be more to do, if that is known."""
        while True:
            held = await self.live.sandboxes.load(key)
            if held is None:
                return None
            facts = await self._facts(held.record)
            step = lifecycle.next_step(facts, self.rules)
            if isinstance(step, Rest):
                await self._publish(held, facts)
                return step.until
            name = type(step).__name__.lower()
            with span(f"sandbox {name}", facts.sandbox.traceparent, sandbox=facts.sandbox.sandbox):
                await self._do(step, facts, held)

    async def _facts(self, sandbox: SandboxRecord) -> Facts:
        runtime = self.runtimes.get(sandbox.runtime)
        seen = await runtime.look(sandbox.alias) if runtime else None
        # In this order: what is read later is newer, and a worker that is seen dead has said all it ever will.
        settled = await self._is_settled(sandbox, seen)
        task = await self.live.load_task(sandbox)
        found = task.record if task else None
        return Facts(sandbox, found, seen, self.live.now(), settled=settled, leading_since=self.since)

    async def _is_settled(self, sandbox: SandboxRecord, seen: Seen | None) -> bool:
        matters = sandbox.state in {SandboxState.SPAWNING, SandboxState.RUNNING, SandboxState.PAUSED}
        return matters and not (seen and seen.alive) and await self.settled()

    async def _publish(self, held: Held[SandboxRecord], facts: Facts) -> None:
        """Publish what is written and was not said yet, by us or by one who died."""
        await self.live.flush_sandbox(held)
        if facts.task and facts.task.outbox:
            await self.live.change_task(facts.task.key, lambda record: record)

    async def _do(self, step: Step, facts: Facts, held: Held[SandboxRecord]) -> None:
        match step:
            case Spawn():
                await self._spawn(held, facts)
            case Recover():
                await self._recover(held, facts)
            case BeginStop(reason=reason):
                await self._begin_stop(facts, reason)
            case Stop():
                await self._stop(facts.sandbox)
            case EndTask():
                await self._end_task(step, facts)
            case Finish(unsaid=unsaid):
                await self._finish(facts.sandbox, unsaid=unsaid)
            case Clear(keep=keep):
                await self._clear(facts.sandbox, keep=keep)

    async def _begin_stop(self, facts: Facts, reason: str) -> None:
        await self.live.change_sandbox(facts.sandbox.key, lambda record: decisions.stopping(record, reason, facts.now))

    async def _clear(self, sandbox: SandboxRecord, *, keep: bool) -> None:
        runtime = self._runtime(sandbox)
        await (runtime.keep(sandbox.alias) if keep else runtime.remove(sandbox.alias))

    async def _spawn(self, held: Held[SandboxRecord], facts: Facts) -> None:
        key = held.record.key
        try:
            runtime = self._runtime(held.record)
            await runtime.create(self._plan(held, facts))
        except RuntimeFailedError as error:
            await self._spawn_failed(held.record, error)
            return
        now = self.live.now()
        isolation = runtime.capabilities.isolation
        await self.live.change_sandbox(key, lambda record: decisions.spawned(record, isolation, now))
        await self.live.change_task_of(held.record, lambda record: record)

    async def _spawn_failed(self, sandbox: SandboxRecord, error: RuntimeFailedError) -> None:
        """What can't be made now is tried again until the time for it is up; what can't ever be made has failed."""
        now = self.live.now()
        if not error.permanent and now < max(sandbox.requested_at, self.since) + timedelta(
            seconds=self.rules.spawn_timeout
        ):
            raise error
        _log.error("a sandbox could not be made", sandbox=sandbox.sandbox, fault=error.fault, error=str(error))

        def decide(record: SandboxRecord) -> SandboxRecord:
            waits = record.state is SandboxState.REQUESTED
            return decisions.failed(record, str(error), error.fault, now) if waits else record

        await self.live.change_sandbox(sandbox.key, decide)

    async def _recover(self, held: Held[SandboxRecord], facts: Facts) -> None:
        """Counted first: a recovery that ends the spawner itself must not be tried for ever."""
        _log.warning("recovering", sandbox=held.record.sandbox, end=str(facts.seen and facts.seen.end))
        changed = await self.live.change_sandbox(
            held.record.key, lambda record: decisions.recovering(record, facts.now), publish=False
        )
        if changed:
            await self._runtime(held.record).recover(self._plan(changed, facts))

    async def _stop(self, sandbox: SandboxRecord) -> None:
        runtime = self._runtime(sandbox)
        await runtime.stop(sandbox.alias, self.plans.stop_grace)
        seen = await runtime.look(sandbox.alias)
        code = seen.end.code if seen and seen.end else None
        await self.live.change_sandbox(sandbox.key, lambda record: decisions.stopped(record, code))

    async def _end_task(self, verdict: EndTask, facts: Facts) -> None:
        def decide(task: TaskRecord) -> TaskRecord:
            ours = task.sandbox == facts.sandbox.sandbox and not task.ended
            return of_task.failed(task, verdict.error, verdict.error_type, facts.now) if ours else task

        await self.live.change_task_of(facts.sandbox, decide)

    async def _finish(self, sandbox: SandboxRecord, *, unsaid: bool) -> None:
        now = self.live.now()
        good = {key.public_key: key.expires_at for key in sandbox.keys if key.expires_at > now}
        if good:
            await self.revoker.revoke(good, now)
        if unsaid:
            _log.error("something of this sandbox was never said", sandbox=sandbox.sandbox)

        def decide(record: SandboxRecord) -> SandboxRecord:
            # One that was granted a credential in between is asked for again, with that one.
            return decisions.terminated(record, unsaid=unsaid, now=now) if record.keys == sandbox.keys else record

        await self.live.change_sandbox(sandbox.key, decide)

    def _runtime(self, sandbox: SandboxRecord) -> Runtime:
        runtime = self.runtimes.get(sandbox.runtime)
        if runtime is None:
            raise RuntimeFailedError(RuntimeFault.REFUSED, f"there is no runtime {sandbox.runtime} here any more")
        return runtime

    def _plan(self, held: Held[SandboxRecord], facts: Facts) -> SandboxPlan:
        sandbox, task = held.record, facts.task
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
            max_work_bytes=self.plans.max_work_bytes,
            joiner=self.minter.mint_joiner(sandbox.project, sandbox.sandbox, self.plans.joiner_life),
            nats_url=self.plans.nats_url,
            heartbeat_interval=self.plans.heartbeat_interval,
            stop_grace=self.plans.stop_grace,
            traceparent=sandbox.traceparent,
        )
