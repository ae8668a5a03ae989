"""After a worker that was lost: end what its agent left running, and say the end and the last word in its place."""

import os
from signal import SIGTERM
from typing import Final

from sandherd.contracts.events.access import AgentExecCompleted
from sandherd.contracts.events.agent import AgentError, AgentFailed, AgentShutdown
from sandherd.telemetry import logs
from sandherd_worker.access.log import unfinished
from sandherd_worker.assignment import Assignment
from sandherd_worker.emitter import Emitter, now
from sandherd_worker.processes import end, left_behind
from sandherd_worker.saving import Keeping, Transcript, time_to_save
from sandherd_worker.spool import Spool
from sandherd_worker.spool_disk import SpoolFullError
from sandherd_worker.stopping import STOPPED, Stop

_LOST: Final = "worker_lost"
_log: Final = logs.get("recovery")


async def recover(who: Assignment, spool: Spool, emitter: Emitter, stop: Stop) -> None:
    """Say what the lost worker could not say any more; nothing if it had said its last word. Raises `SpoolError`."""
    await end(lambda: left_behind(who.place) - {os.getpid()}, grace=0)
    if spool.closed:
        return
    for damage in spool.damage:
        _log.warning("a torn end was cut off; nothing that was promised was in it", damage=damage)
        await emitter.emit(AgentError(error=f"the spool had a torn end: {damage}", phase="recovery"), last_words=True)
    lost = loss(who.lost_signal, memory=who.lost_for_memory)
    for command in unfinished(who.state_dir):
        await emitter.emit(AgentExecCompleted(exec_id=command, state="failed"), last_words=True)
    if who.task is not None:
        await _put_by(who, spool, emitter, stop)
        await emitter.emit(lost, last_words=True)
    await emitter.emit(AgentShutdown(reason=lost.error_type, timestamp=now()), last_words=True)


async def _put_by(who: Assignment, spool: Spool, emitter: Emitter, stop: Stop) -> None:
    """What the next attempt may want, if this one has failed by this and if there is room to keep it."""
    if spool.ended or spool.trouble is not None:
        return
    keeping = Keeping(who, emitter, spool)
    try:
        await keeping.save_work(time_to_save(who, stop))
        await keeping.save_transcript(Transcript(who.state_dir).read())
    except SpoolFullError as error:
        _log.error("nothing is kept for the next attempt", error=str(error))


def loss(signal: int | None, *, memory: bool = False) -> AgentFailed:
    """The end of a task whose worker ended without one, by this signal if one is known, and for want of memory.

    SIGTERM asks a worker to end. One that dies of it was not far enough to hear it, and was stopped all the same.
    """
    if signal == SIGTERM:
        return AgentFailed(error="it was stopped when its worker had only begun", error_type=STOPPED, signal=signal)
    if memory:
        told = "the kernel ended its worker for want of memory"
        return AgentFailed(error=told, error_type="out_of_memory", signal=signal)
    return AgentFailed(error="the worker was lost", error_type=_LOST, signal=signal)
