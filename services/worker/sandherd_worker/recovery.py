"""Recovery after a lost worker: ends the agent's remaining processes, and publishes the missing final events."""

import os
from signal import SIGTERM
from typing import Final

from sandherd.contracts.errors import ContractError
from sandherd.contracts.events.access import AgentExecCompleted
from sandherd.contracts.events.agent import AgentError, AgentFailed, AgentShutdown
from sandherd.contracts.specs import TaskSpec
from sandherd.process_signals import end
from sandherd.telemetry import logs
from sandherd_worker.access.command_log import unfinished
from sandherd_worker.emitter import now
from sandherd_worker.harness_factory import read_spec, secrets
from sandherd_worker.processes import orphans
from sandherd_worker.redaction import Redactor
from sandherd_worker.repository.branch_saver import BranchSaver
from sandherd_worker.repository.checkout import MARK
from sandherd_worker.spool_disk import SpoolFullError
from sandherd_worker.work_snapshot import OutputTranscript, WorkSaver, time_to_save
from sandherd_worker.worker_exit import STOPPED
from sandherd_worker.worker_resources import WorkerResources

_LOST: Final = "worker_lost"
_log: Final = logs.get("recovery")


async def recover(resources: WorkerResources) -> None:
    """Publish the final events that the lost worker did not store; none if it stored its last event.

    Raises `SpoolError`.
    """
    assignment, spool, emitter = resources.assignment, resources.spool, resources.emitter
    await end(lambda: orphans(assignment.place) - {os.getpid()}, grace=0)
    if spool.closed:
        return
    for damage in spool.damage:
        _log.warning("incomplete spool record removed", damage=damage)
        await emitter.emit(AgentError(error=f"incomplete spool record: {damage}", phase="recovery"), use_reserve=True)
    failure = loss(assignment.lost_signal, memory=assignment.lost_for_memory)
    for command in unfinished(assignment.state_dir):
        await emitter.emit(AgentExecCompleted(exec_id=command, state="failed"), use_reserve=True)
    if assignment.task is not None:
        await _save_work(resources)
        await emitter.emit(failure, use_reserve=True)
    await emitter.emit(AgentShutdown(reason=failure.error_type, timestamp=now()), use_reserve=True)


async def _save_work(resources: WorkerResources) -> None:
    """Store the results that the next attempt may use, unless the attempt has ended before or the spool is full."""
    assignment, spool = resources.assignment, resources.spool
    if spool.ended or spool.trouble is not None:
        return
    work_saver = WorkSaver(assignment, resources.emitter, spool)
    try:
        await _save_branch(resources)
        await work_saver.save_work(time_to_save(assignment, resources.stop))
        await work_saver.save_transcript(OutputTranscript(assignment.state_dir).read())
    except SpoolFullError as error:
        _log.error("work not saved for the next attempt", error=str(error))


async def _save_branch(resources: WorkerResources) -> None:
    if not (resources.assignment.state_dir / MARK).exists():
        return
    try:
        spec = read_spec(resources.assignment)
    except (ContractError, OSError) as error:
        _log.error("branch not saved", error=str(error))
        return
    if isinstance(spec, TaskSpec):
        redactor = Redactor(secrets(spec))
        await BranchSaver(spec, resources, redactor).save()


def loss(signal: int | None, *, memory: bool = False) -> AgentFailed:
    """The end of an attempt whose worker was lost. `signal`: the signal that ended the worker, if known.

    SIGTERM ends only a worker that has not installed its handler yet, so that the attempt was stopped at its start.
    """
    if signal == SIGTERM:
        return AgentFailed(error="it was stopped while its worker was starting", error_type=STOPPED, signal=signal)
    if memory:
        error = "out of memory: the kernel killed its worker; its limit of memory is too low for it"
        return AgentFailed(error=error, error_type="out_of_memory", signal=signal)
    return AgentFailed(error="the worker was lost", error_type=_LOST, signal=signal)
