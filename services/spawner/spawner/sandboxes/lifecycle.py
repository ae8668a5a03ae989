"""What to do next with a sandbox: one pure decision over its record, its task and what is really there.

It is asked again after every step, after a crash as well as after success: each step leads a state that may be found
anywhere, at any time, nearer to its end, and doing one twice does no harm.
"""

import re
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from sandherd.contracts.states import SandboxState, TaskState
from spawner.runtimes.contract import RunEnd, Seen
from spawner.sandboxes.record import SandboxRecord
from spawner.tasks.record import TaskRecord

_ERROR_TYPE: Final = re.compile(r"[a-z][a-z0-9_]{0,39}")
_LONGEST_PAUSE: Final = 60.0


@dataclass(frozen=True)
class Rules:
    """The times that a sandbox is led by, in seconds, and how often a recovery is tried."""

    spawn_timeout: float = 60.0
    recovery_timeout: float = 60.0
    most_recoveries: int = 5


@dataclass(frozen=True)
class Rest:
    """Nothing to do before `until`, or before something happens."""

    until: datetime | None = None


@dataclass(frozen=True)
class Spawn:
    """Have the runtime make it."""


@dataclass(frozen=True)
class Recover:
    """Start a worker once more, to say what is left unsaid."""


@dataclass(frozen=True)
class BeginStop:
    """Write down that it is to be ended, and why."""

    reason: str


@dataclass(frozen=True)
class Stop:
    """End its worker, and every process with it."""


@dataclass(frozen=True)
class EndTask:
    """Its task will not be done by it."""

    error: str
    error_type: str


@dataclass(frozen=True)
class Finish:
    """Take back its credentials and write down that it is gone."""

    unsaid: bool


@dataclass(frozen=True)
class Clear:
    """Remove what it left on the host; `keep` puts it aside instead."""

    keep: bool


Step = Rest | Spawn | Recover | BeginStop | Stop | EndTask | Finish | Clear


@dataclass(frozen=True)
class Facts:
    """All that the decision is made from. `settled`: every agent event that the broker has was taken in."""

    sandbox: SandboxRecord
    task: TaskRecord | None
    seen: Seen | None
    now: datetime
    settled: bool = False
    leading_since: datetime | None = None
    """Since when somebody is there to lead it: no deadline runs while there is no spawner."""

    @property
    def current(self) -> bool:
        """Whether the task's current attempt is in this sandbox."""
        return self.task is not None and self.task.sandbox == self.sandbox.sandbox

    @property
    def working(self) -> bool:
        """Whether a task waits for what is done here."""
        return self.current and self.task is not None and not self.task.ended

    def since(self, moment: datetime) -> datetime:
        """When a deadline that was set at this moment began to run."""
        return max(moment, self.leading_since or moment)


def next_step(facts: Facts, rules: Rules) -> Step:
    """The one thing to do now."""
    if facts.sandbox.ended:
        return _after_the_end(facts, rules)
    if facts.sandbox.state is SandboxState.STOPPING:
        return _while_stopping(facts, rules)
    unwanted = _unwanted(facts)
    if unwanted is not None:
        return unwanted
    if facts.sandbox.state is SandboxState.REQUESTED:
        return Spawn() if facts.working else Rest()
    return _while_alive(facts, rules)


def _after_the_end(facts: Facts, rules: Rules) -> Step:
    if facts.working:
        return EndTask(facts.sandbox.error or _because(facts.sandbox), error_type(facts.sandbox))
    if facts.seen is None:
        return Rest()
    return _still_to_say(facts, facts.seen, rules) if facts.sandbox.unsaid else Clear(keep=False)


def _still_to_say(facts: Facts, seen: Seen, rules: Rules) -> Step:
    """It ended with something unsaid. It lies there only to be put aside, or because it was put back to be tried."""
    if seen.alive:
        return _while_recovering(facts, rules)
    if seen.end and seen.end.drained:
        return Finish(unsaid=False)
    return _recovery(facts, rules) or Clear(keep=True)


def _while_stopping(facts: Facts, rules: Rules) -> Step:
    sandbox, seen = facts.sandbox, facts.seen
    if facts.working:
        # Before the worker hears of it: its own last words must not be taken for the reason.
        return EndTask(_because(sandbox), error_type(sandbox))
    if not sandbox.stopped:
        return Stop()
    if seen is None or seen.runs == 0:
        return Finish(unsaid=False)
    if seen.alive:
        return _while_recovering(facts, rules)
    if seen.end is None or not (seen.end.drained or seen.end.never_spoke):
        return _recovery(facts, rules) or Finish(unsaid=True)
    return Finish(unsaid=False)


def _while_recovering(facts: Facts, rules: Rules) -> Step:
    until = facts.since(facts.sandbox.recovered_at or facts.now) + timedelta(seconds=rules.recovery_timeout)
    return Rest(until) if facts.now < until else Stop()


def _unwanted(facts: Facts) -> Step | None:
    """What to do if nothing is to be done here any more; None while its task goes on."""
    task, sandbox = facts.task, facts.sandbox
    if task is None:
        return BeginStop("task_gone")
    if task.state is TaskState.PENDING and task.attempt == sandbox.attempt:
        return None  # the scheduler is between its two writes, or will be again
    if not facts.current:
        return BeginStop("superseded")
    if not task.ended:
        return None
    lingers_until = (task.ended_at or facts.now) + timedelta(seconds=task.spec.linger_seconds)
    lingers = task.state is not TaskState.CANCELLED and facts.seen is not None and facts.seen.alive
    if lingers and facts.now < lingers_until:
        return Rest(lingers_until)
    return BeginStop("completed" if task.state is TaskState.COMPLETED else task.error_type or "failed")


def _while_alive(facts: Facts, rules: Rules) -> Step:
    """Its task goes on, and a runtime was asked to make it."""
    sandbox, seen = facts.sandbox, facts.seen
    if seen is None:
        return _lost(facts, EndTask("the runtime has lost the sandbox", "sandbox_lost"))
    if seen.alive:
        deadline = facts.since(sandbox.requested_at) + timedelta(seconds=rules.spawn_timeout)
        if sandbox.state is not SandboxState.SPAWNING:
            return Rest()
        if facts.now < deadline:
            return Rest(deadline)
        return EndTask(f"its worker did not speak within {rules.spawn_timeout:g} s", "spawn_timeout")
    if seen.end and (seen.end.drained or seen.end.never_spoke):
        return _lost(facts, _worker_lost(seen.end))
    return _recovery(facts, rules) or _lost(facts, _worker_lost(seen.end))


def _lost(facts: Facts, verdict: EndTask) -> Step:
    """The verdict, but only when the worker's own can't be on its way to us any more."""
    return verdict if facts.settled else Rest(facts.now + timedelta(seconds=1))


def _recovery(facts: Facts, rules: Rules) -> Step | None:
    """Try to say what is left, a few times with growing pauses; None when that was of no use."""
    sandbox = facts.sandbox
    if sandbox.recoveries >= rules.most_recoveries:
        return None
    if sandbox.recovered_at is None:
        return Recover()
    until = sandbox.recovered_at + timedelta(seconds=min(_LONGEST_PAUSE, 2.0**sandbox.recoveries - 1))
    return Recover() if facts.now >= until else Rest(until)


def _worker_lost(end: RunEnd | None) -> EndTask:
    if end and end.out_of_memory:
        return EndTask("the kernel ended the worker for want of memory", "out_of_memory")
    status = "an unknown status" if end is None or end.code is None else f"status {end.code}"
    told = f": {end.last_line}" if end and end.last_line else ""
    return EndTask(f"the worker ended with {status} and without an end of its task{told}", "worker_lost")


def _because(sandbox: SandboxRecord) -> str:
    return f"its sandbox was ended: {sandbox.reason or 'no reason given'}"


def error_type(sandbox: SandboxRecord) -> str:
    """Why, as a word for programs: the reason itself if it is one, else `terminated`."""
    reason = sandbox.error_type or sandbox.reason or ""
    return reason if _ERROR_TYPE.fullmatch(reason) else "terminated"
