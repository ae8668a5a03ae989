"""After a worker that was lost: end what its agent left running, and say the end and the last word in its place."""

import os
from signal import SIGTERM
from typing import Final

from sandherd.contracts.events.agent import AgentError, AgentFailed, AgentShutdown
from sandherd.telemetry import logs
from sandherd_worker.assignment import Assignment
from sandherd_worker.emitter import Emitter, now
from sandherd_worker.processes import end, left_behind
from sandherd_worker.spool import Spool
from sandherd_worker.stopping import STOPPED

_LOST: Final = "worker_lost"
_log: Final = logs.get("recovery")


async def recover(who: Assignment, spool: Spool, emitter: Emitter) -> None:
    """Say what the lost worker could not say any more; nothing if it had said its last word. Raises `SpoolError`."""
    await end(lambda: left_behind(who.place) - {os.getpid()}, grace=0)
    if spool.closed:
        return
    for damage in spool.damage:
        _log.warning("a torn end was cut off; nothing that was promised was in it", damage=damage)
        await emitter.emit(AgentError(error=f"the spool had a torn end: {damage}", phase="recovery"), last_words=True)
    lost = loss(who.lost_signal)
    await emitter.emit(lost, last_words=True)
    await emitter.emit(AgentShutdown(reason=lost.error_type, timestamp=now()), last_words=True)


def loss(signal: int | None) -> AgentFailed:
    """The end of a task whose worker ended without one, by this signal if one is known.

    SIGTERM asks a worker to end. One that dies of it was not far enough to hear it, and was stopped all the same.
    """
    if signal == SIGTERM:
        return AgentFailed(error="it was stopped when its worker had only begun", error_type=STOPPED, signal=signal)
    return AgentFailed(error="the worker was lost", error_type=_LOST, signal=signal)
