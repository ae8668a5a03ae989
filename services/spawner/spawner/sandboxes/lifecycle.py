"""Decides on the next step of a sandbox. Pure: from its record, its task and its observed state.

The decision is made again after every step, and after a crash. So there is a step for every state in which a sandbox
may be observed, and repeating a step has no further effect.
"""

import re
from datetime import timedelta
from typing import Final

from sandherd.backoff import Backoff
from sandherd.contracts.failures import ErrorType
from sandherd.contracts.states import SandboxState, TaskState
from spawner.runtimes.contract import ObservedSandbox, RunEnd
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
from spawner.sandboxes.sandbox_record import SandboxRecord
from spawner.tasks.task_record import TaskRecord

_ERROR_TYPE: Final = re.compile(r"[a-z][a-z0-9_]{0,39}")
_OUT_OF_MEMORY: Final = "out of memory: the kernel killed its worker; its limit of memory is too low for it"
_DECISION_DELAY: Final = timedelta(seconds=1)
"""The delay before the next decision while the final event of a task may still arrive."""
_FINAL_EVENT_GRACE: Final = timedelta(seconds=30)
"""How long an expired sandbox may continue while the final event of its task may still arrive."""
_RECOVERY_BACKOFF: Final = Backoff(base=2.0, cap=60.0, jitter=0)


def next_step(facts: LifecycleFacts, rules: LifecycleTimeouts) -> Step:
    """The next step of the sandbox that `facts` describe."""
    if facts.sandbox.ended:
        return _step_after_end(facts, rules)
    if facts.sandbox.state is SandboxState.STOPPING:
        return _step_while_stopping(facts, rules)
    step = _step_while_needed(facts, rules)
    return _rest_until_expiry(step, facts) if isinstance(step, Rest) else step


def _step_while_needed(facts: LifecycleFacts, rules: LifecycleTimeouts) -> Step:
    unneeded_step = None if facts.alone else _unneeded_step(facts)
    if isinstance(unneeded_step, BeginStop):
        return unneeded_step
    expiry_step = _expiry_step(facts)
    if expiry_step is not None:
        return expiry_step
    if unneeded_step is not None:
        return unneeded_step
    if facts.sandbox.state is SandboxState.REQUESTED:
        return Spawn() if facts.working or facts.alone else Rest()
    return _step_while_alive(facts, rules)


def _expiry_step(facts: LifecycleFacts) -> Step | None:
    """The step for an expired sandbox, or None. The time limits of its task are checked by the scheduler."""
    if not facts.expired or facts.sandbox.expires_at is None:
        return None
    deadline = facts.since(facts.sandbox.expires_at) + _FINAL_EVENT_GRACE
    if facts.working and not facts.settled and facts.now < deadline:
        # The final event of its task may still arrive, for example if it was published while no spawner was running.
        freezing_step = _freezing_step(facts) if facts.seen and facts.seen.alive else None
        return freezing_step or Rest(min(deadline, facts.now + _DECISION_DELAY))
    return BeginStop(ErrorType.EXPIRED)


def _rest_until_expiry(rest: Rest, facts: LifecycleFacts) -> Rest:
    """The step `rest`, which ends at the latest when the sandbox expires."""
    if facts.expired or facts.sandbox.expires_at is None:
        return rest
    return Rest(min(rest.until or facts.sandbox.expires_at, facts.sandbox.expires_at))


def _step_after_end(facts: LifecycleFacts, rules: LifecycleTimeouts) -> Step:
    if facts.working:
        return EndTask(_end_reason(facts.sandbox), error_type(facts.sandbox))
    if facts.seen is not None and facts.sandbox.unsaid:
        return _undelivered_step(facts, facts.seen, rules)
    return _revocation_step(facts) or (Rest() if facts.seen is None else Clear(keep=False))


def _undelivered_step(facts: LifecycleFacts, seen: ObservedSandbox, rules: LifecycleTimeouts) -> Step:
    """The step for a sandbox that ended with undelivered events: recover it as often as allowed, then quarantine it."""
    if seen.alive:
        return _step_while_recovering(facts, rules)
    if seen.end and seen.end.drained:
        return Finish(unsaid=False)
    return _recovery_step(facts, rules) or _revocation_step(facts) or Clear(keep=True)


def _revocation_step(facts: LifecycleFacts) -> Step | None:
    """The step that revokes the credentials of workers that recovered the sandbox; None if there are none."""
    return Finish(unsaid=facts.sandbox.unsaid) if facts.sandbox.keys else None


def _step_while_stopping(facts: LifecycleFacts, rules: LifecycleTimeouts) -> Step:
    sandbox, seen = facts.sandbox, facts.seen
    if facts.working:
        # The attempt ends before the worker is stopped, so that the worker's last event does not become its reason.
        return EndTask(_end_reason(sandbox), error_type(sandbox))
    if not sandbox.stopped:
        return Stop()
    if seen is None or seen.runs == 0 or (seen.end and seen.end.files_deleted) or _is_cut_off(sandbox):
        return Finish(unsaid=False)
    if seen.alive:
        return _step_while_recovering(facts, rules)
    if seen.end is None or not (seen.end.drained or seen.end.ended_before_events):
        return _recovery_step(facts, rules) or Finish(unsaid=True)
    return Finish(unsaid=False)


def _is_cut_off(sandbox: SandboxRecord) -> bool:
    """Whether the sandbox flooded the broker. It gets no further credential, so its events can't be delivered."""
    return ErrorType.FLOODING in {sandbox.error_type, sandbox.reason}


def _step_while_recovering(facts: LifecycleFacts, rules: LifecycleTimeouts) -> Step:
    until = facts.since(facts.sandbox.recovered_at or facts.now) + timedelta(seconds=rules.recovery_timeout)
    return Rest(until) if facts.now < until else Stop()


def _unneeded_step(facts: LifecycleFacts) -> Step | None:
    """The step for a sandbox that its task does not need any more; None while the task runs here."""
    task, sandbox = facts.task, facts.sandbox
    if task is None:
        return BeginStop("task_gone")
    if facts.begins_later:
        return None
    if not facts.current:
        return BeginStop(_stop_reason(task, sandbox))
    if not task.ended:
        return None
    lingers_until = (task.ended_at or facts.now) + timedelta(seconds=task.spec.linger_seconds)
    lingers = task.state is not TaskState.CANCELLED and facts.seen is not None and facts.seen.alive
    if lingers and facts.now < lingers_until:
        return _freezing_step(facts) or Rest(lingers_until)
    return BeginStop("completed" if task.state is TaskState.COMPLETED else task.error_type or "failed")


def _stop_reason(task: TaskRecord, sandbox: SandboxRecord) -> str:
    """Why the task continues without this sandbox, or ended before it ran here."""
    if task.previous and task.previous.sandbox == sandbox.sandbox:
        return task.previous.error_type or "superseded"
    ended_here = task.ended and task.attempt == sandbox.attempt
    return (task.error_type if ended_here else None) or "superseded"


def _step_while_alive(facts: LifecycleFacts, rules: LifecycleTimeouts) -> Step:
    """The step for a sandbox that is needed, and that a runtime was requested to create."""
    sandbox, seen = facts.sandbox, facts.seen
    if seen is None or (seen.end and seen.end.files_deleted):
        return _step_once_settled(facts, _lost_step(facts))
    if seen.alive:
        deadline = facts.since(sandbox.requested_at) + timedelta(seconds=rules.spawn_timeout)
        if sandbox.state is not SandboxState.SPAWNING:
            return _freezing_step(facts) or Rest()
        if facts.now < deadline:
            return Rest(deadline)
        return _failure_step(
            facts, f"its worker published nothing within {rules.spawn_timeout:g} s", ErrorType.SPAWN_TIMEOUT
        )
    if seen.end and (seen.end.drained or seen.end.ended_before_events):
        return _step_once_settled(facts, _worker_lost_step(facts, seen.end))
    return _recovery_step(facts, rules) or _step_once_settled(facts, _worker_lost_step(facts, seen.end))


def _freezing_step(facts: LifecycleFacts) -> Step | None:
    """The step that freezes or thaws the sandbox if its state is not as requested; None if it is."""
    sandbox = facts.sandbox
    frozen = facts.seen.frozen if facts.seen else None
    running, paused = sandbox.state is SandboxState.RUNNING, sandbox.state is SandboxState.PAUSED
    if sandbox.pause_wanted:
        return Pause() if running or (paused and frozen is False) else None
    return Resume() if paused or sandbox.may_be_frozen or (running and frozen) else None


def _step_once_settled(facts: LifecycleFacts, verdict: Step) -> Step:
    """The step `verdict`, but not before all events of agents are handled: the final event may still arrive."""
    return verdict if facts.settled else Rest(facts.now + _DECISION_DELAY)


def _lost_step(facts: LifecycleFacts) -> Step:
    """The step for a sandbox that its runtime has lost: it fails. If paused, it must be stopped before that."""
    reason = facts.seen.end.last_line if facts.seen and facts.seen.end else ""
    error = f"the runtime has lost the sandbox{': ' + reason if reason else ''}"
    if facts.sandbox.state is SandboxState.PAUSED:
        return _failure_step(facts, error, ErrorType.SANDBOX_LOST)
    return Fail(error, ErrorType.SANDBOX_LOST)


def _failure_step(facts: LifecycleFacts, error: str, error_type: str) -> Step:
    """The step that fails the attempt in the sandbox, or ends the sandbox if no attempt runs in it."""
    return EndTask(error, error_type) if facts.working else BeginStop(error_type, error)


def _recovery_step(facts: LifecycleFacts, rules: LifecycleTimeouts) -> Step | None:
    """The step that recovers the sandbox's events, with backoff; None if the maximum number is reached."""
    sandbox = facts.sandbox
    if sandbox.recoveries >= rules.max_recoveries:
        return None
    if sandbox.recovered_at is None:
        return Recover()
    until = sandbox.recovered_at + timedelta(seconds=_RECOVERY_BACKOFF.delay(sandbox.recoveries - 1))
    return Recover() if facts.now >= until else Rest(until)


def _worker_lost_step(facts: LifecycleFacts, end: RunEnd | None) -> Step:
    if end and end.out_of_memory:
        return _failure_step(facts, _OUT_OF_MEMORY, ErrorType.OUT_OF_MEMORY)
    if end and end.not_started:
        return _failure_step(facts, "it was stopped before its worker had begun", ErrorType.STOPPED)
    status = "an unknown status" if end is None or end.code is None else f"status {end.code}"
    if end and end.disk_refused:
        error = "the worker could not write its events: the disk of its sandbox is full or refuses writes"
        return _failure_step(facts, error, ErrorType.WORKER_LOST)
    last_line = f": {end.last_line}" if end and end.last_line and not end.drained else ""
    how = "without an end of its task" if facts.task else "by itself"
    return _failure_step(facts, f"the worker ended with {status} and {how}{last_line}", ErrorType.WORKER_LOST)


def _end_reason(sandbox: SandboxRecord) -> str:
    return sandbox.error or f"its sandbox was ended: {sandbox.reason or 'no reason given'}"


def error_type(sandbox: SandboxRecord) -> str:
    """The `error_type` of a sandbox's end: the recorded reason if it has the form of a type, else `terminated`."""
    reason = sandbox.error_type or sandbox.reason or ""
    return reason if _ERROR_TYPE.fullmatch(reason) else ErrorType.TERMINATED
