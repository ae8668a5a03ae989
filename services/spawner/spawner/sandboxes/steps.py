"""Doing what `lifecycle.next_step` says, one step at a time; a crash after any of them is no matter."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from sandherd.contracts.states import SandboxState
from sandherd.telemetry import logs, spans
from sandherd.telemetry.traces import span
from spawner.live import Live
from spawner.records.store import Held
from spawner.runtimes.contract import Runtime, Seen
from spawner.sandboxes import lifecycle
from spawner.sandboxes.acts import Acts
from spawner.sandboxes.credentials import Mint, Revoke
from spawner.sandboxes.facts import Facts, Rules
from spawner.sandboxes.leading import HeldLease, Leading
from spawner.sandboxes.moves import (
    BeginStop,
    Clear,
    EndTask,
    Fail,
    Finish,
    Pause,
    Recover,
    Rest,
    Resume,
    Spawn,
    Step,
    Stop,
)
from spawner.sandboxes.planning import Plans
from spawner.sandboxes.record import SandboxRecord
from spawner.sandboxes.runtimes import Runtimes
from spawner.sandboxes.verdicts import Verdicts
from spawner.tasks.record import TaskRecord

_LIVES: Final = frozenset({SandboxState.SPAWNING, SandboxState.RUNNING, SandboxState.PAUSED})
Settled = Callable[[], Awaitable[bool]]
_STUCK: Final = timedelta(seconds=5)
_log: Final = logs.get("steps")


@dataclass(frozen=True)
class Found:
    """What a decision was made from, with the revisions that it is written over."""

    sandbox: Held[SandboxRecord]
    task: Held[TaskRecord] | None
    seen: Seen | None
    facts: Facts

    def same(self, other: "Found | None") -> bool:
        """Whether nothing has changed since the other."""
        return other is not None and (self.sandbox.revision, self.task, self.seen) == (
            other.sandbox.revision,
            other.task,
            other.seen,
        )


def make_steps(
    live: Live,
    lease: HeldLease,
    runtimes: Mapping[str, Runtime],
    *,
    minter: Mint,
    revoker: Revoke,
    plans: Plans,
    rules: Rules,
    settled: Settled,
) -> "Steps":
    """The steps of a spawner that begins now."""
    leading, asked = Leading(live, lease), Runtimes(runtimes, lease, rules.call_timeout)
    return Steps(
        live=live,
        runtimes=asked,
        acts=Acts(leading, asked, minter, plans, rules),
        verdicts=Verdicts(leading, revoker, minter, plans),
        rules=rules,
        settled=settled,
        since=live.now(),
    )


@dataclass(frozen=True)
class Steps:
    """What leading a sandbox needs. `settled` says whether every agent event that the broker has was taken in."""

    live: Live
    runtimes: Runtimes
    acts: Acts
    verdicts: Verdicts
    rules: Rules
    settled: Settled
    since: datetime
    """When this spawner began."""

    async def lead(self, key: str) -> datetime | None:
        """Do all that can be done now. Returns when there may be more to do, if that is known."""
        before: Found | None = None
        while True:
            held = await self.live.sandboxes.load(key)
            if held is None:
                return None
            found = await self._find(held)
            step = lifecycle.next_step(found.facts, self.rules)
            if isinstance(step, Rest):
                await self._publish(found)
                return step.until
            if found.same(before):
                _log.error("a step changes nothing", step=repr(step), sandbox=held.record.sandbox)
                return found.facts.now + _STUCK
            before = found
            with span(spans.SANDBOX_STEP, held.record.traceparent, _told(held.record, step)):
                until = await self._do(step, found)
            if until is not None:
                return until

    async def _find(self, held: Held[SandboxRecord]) -> Found:
        sandbox = held.record
        seen = await self.runtimes.look(sandbox)
        # In this order: what is read later is newer, and a worker that is seen dead has said all it ever will.
        doubtful = not (seen and seen.alive) or (
            sandbox.expires_at is not None and self.live.now() >= sandbox.expires_at
        )
        settled = sandbox.state in _LIVES and doubtful and await self.settled()
        task = await self.live.load_task(sandbox)
        record = task.record if task else None
        facts = Facts(sandbox, record, seen, self.live.now(), settled=settled, leading_since=self.since)
        return Found(held, task, seen, facts)

    async def _publish(self, found: Found) -> None:
        """Publish what is written and was not said yet, by us or by one who died."""
        await self.live.flush_sandbox(found.sandbox)
        if found.task and found.task.record.outbox:
            await self.live.tasks.flush(found.task)

    async def _do(self, step: Step, found: Found) -> datetime | None:
        """Returns when to look again, if not at once."""
        held, facts = found.sandbox, found.facts
        match step:
            case Spawn():
                return await self.acts.spawn(held, facts.task, facts.since(held.record.requested_at))
            case Pause():
                await self.acts.pause(held.record)
            case Resume():
                await self.acts.resume(held.record)
            case Recover():
                await self.acts.recover(held, facts)
            case Stop():
                await self.acts.stop(held.record)
            case Clear(keep=keep):
                await self.acts.clear(held.record, keep=keep)
            case _:
                await self._judge(step, found)
        return None

    async def _judge(self, step: Step, found: Found) -> None:
        held, now = found.sandbox, found.facts.now
        match step:
            case BeginStop():
                await self.verdicts.begin_stop(held, step, now)
            case EndTask() if found.task:
                await self.verdicts.end_task(held.record, found.task, step, now)
            case Fail():
                await self.verdicts.fail(held, step)
            case Finish(unsaid=unsaid):
                await self.verdicts.finish(held, unsaid=unsaid)
            case _:
                pass


def _told(sandbox: SandboxRecord, step: Step) -> spans.Values:
    return {
        spans.PROJECT: sandbox.project,
        spans.TASK_ID: sandbox.task,
        spans.SANDBOX_ID: sandbox.sandbox,
        spans.RUNTIME: sandbox.runtime,
        spans.STEP: type(step).__name__.lower(),
    }
