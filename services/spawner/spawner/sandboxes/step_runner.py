"""Runs the steps from `lifecycle.next_step`, one at a time; safe to crash after any of them."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from sandherd.contracts.states import SandboxState
from sandherd.telemetry import logs, spans
from sandherd.telemetry.traces import span
from spawner.live_state import LiveState
from spawner.records.store import StoredRecord
from spawner.runtimes.contract import ObservedSandbox, Runtime
from spawner.sandboxes import lifecycle
from spawner.sandboxes.credentials import Mint, Revoke
from spawner.sandboxes.fenced_writes import FencedWriter, LeaseState
from spawner.sandboxes.lifecycle_facts import LifecycleFacts, LifecycleTimeouts
from spawner.sandboxes.lifecycle_steps import (
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
from spawner.sandboxes.runtime_actions import RuntimeActions
from spawner.sandboxes.runtime_calls import RuntimeCaller
from spawner.sandboxes.sandbox_plans import SandboxPlans
from spawner.sandboxes.sandbox_record import SandboxRecord
from spawner.sandboxes.transition_writer import TransitionWriter
from spawner.tasks.task_record import TaskRecord

_LIVE_STATES: Final = frozenset({SandboxState.SPAWNING, SandboxState.RUNNING, SandboxState.PAUSED})
Settled = Callable[[], Awaitable[bool]]
_UNCHANGED_DELAY: Final = timedelta(seconds=5)
"""The delay before the next decision after a step that has changed nothing."""
_log: Final = logs.get("step_runner")


@dataclass(frozen=True)
class StepFacts:
    """The input of a decision, with the records whose revisions its writes are conditional on."""

    sandbox: StoredRecord[SandboxRecord]
    task: StoredRecord[TaskRecord] | None
    seen: ObservedSandbox | None
    facts: LifecycleFacts

    def is_same(self, other: "StepFacts | None") -> bool:
        """Whether nothing has changed since `other`."""
        return other is not None and (self.sandbox.revision, self.task, self.seen) == (
            other.sandbox.revision,
            other.task,
            other.seen,
        )


def make_steps(
    live: LiveState,
    lease: LeaseState,
    runtimes: Mapping[str, Runtime],
    *,
    minter: Mint,
    revoker: Revoke,
    plans: SandboxPlans,
    rules: LifecycleTimeouts,
    settled: Settled,
) -> "StepRunner":
    """The step runner of a spawner, created at the spawner's start."""
    writer, caller = FencedWriter(live, lease), RuntimeCaller(runtimes, lease, rules.call_timeout)
    return StepRunner(
        live=live,
        runtimes=caller,
        acts=RuntimeActions(writer, caller, minter, plans, rules),
        transitions=TransitionWriter(writer, revoker, minter, plans),
        rules=rules,
        settled=settled,
        since=live.now(),
    )


@dataclass(frozen=True)
class StepRunner:
    """Runs a sandbox's steps. `settled` returns whether every agent event in the broker was handled."""

    live: LiveState
    runtimes: RuntimeCaller
    acts: RuntimeActions
    transitions: TransitionWriter
    rules: LifecycleTimeouts
    settled: Settled
    since: datetime
    """When this spawner started."""

    async def run(self, key: str) -> datetime | None:
        """Run all steps that can run now. Returns the time at which another step may be due, if known."""
        before: StepFacts | None = None
        while True:
            held = await self.live.sandboxes.newest(key)
            if held is None:
                return None
            found = await self._find(held)
            step = lifecycle.next_step(found.facts, self.rules)
            if isinstance(step, Rest):
                await self._publish(found)
                return step.until
            if found.is_same(before):
                _log.error("sandbox unchanged after a step, retrying", step=repr(step), sandbox=held.record.sandbox)
                return found.facts.now + _UNCHANGED_DELAY
            before = found
            with span(spans.SANDBOX_STEP, held.record.traceparent, _span_values(held.record, step)):
                until = await self._do(step, found)
            if until is not None:
                return until

    async def _find(self, held: StoredRecord[SandboxRecord]) -> StepFacts:
        sandbox = held.record
        seen = await self.runtimes.observe(sandbox)
        # First the runtime is observed, then the events are checked: an ended worker publishes no event after that.
        may_have_ended = not (seen and seen.alive) or (
            sandbox.expires_at is not None and self.live.now() >= sandbox.expires_at
        )
        settled = sandbox.state in _LIVE_STATES and may_have_ended and await self.settled()
        # `settled` includes events that other replicas handled: the tasks that they wrote must be read.
        task = await (self.live.load_task(sandbox) if settled else self.live.newest_task(sandbox))
        record = task.record if task else None
        facts = LifecycleFacts(sandbox, record, seen, self.live.now(), settled=settled, leading_since=self.since)
        return StepFacts(held, task, seen, facts)

    async def _publish(self, found: StepFacts) -> None:
        """Publish the stored events that neither this replica nor a crashed replica has published yet."""
        if not found.facts.begins_later:  # otherwise the scheduler writes the task next, and the next step publishes
            await self.live.flush_sandbox(found.sandbox)
        if found.task and found.task.record.outbox:
            await self.live.tasks.flush(found.task)

    async def _do(self, step: Step, found: StepFacts) -> datetime | None:
        """Run a step. Returns when to check again, if not immediately."""
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
                await self._record_transition(step, found)
        return None

    async def _record_transition(self, step: Step, found: StepFacts) -> None:
        held, now = found.sandbox, found.facts.now
        match step:
            case BeginStop():
                await self.transitions.begin_stop(held, step, now)
            case EndTask() if found.task:
                await self.transitions.end_task(held.record, found.task, step, now)
            case Fail():
                await self.transitions.fail(held, step)
            case Finish(unsaid=unsaid):
                await self.transitions.finish(held, unsaid=unsaid)
            case _:
                pass


def _span_values(sandbox: SandboxRecord, step: Step) -> spans.Values:
    return {
        spans.PROJECT: sandbox.project,
        spans.TASK_ID: sandbox.task,
        spans.SANDBOX_ID: sandbox.sandbox,
        spans.RUNTIME: sandbox.runtime,
        spans.STEP: type(step).__name__.lower(),
    }
