"""After a worker that was lost: end what its agent left running, and say the end and the last word in its place."""

import os
from typing import Final

from sandherd.contracts.events.agent import AgentError, AgentFailed, AgentShutdown
from sandherd.telemetry import logs
from sandherd_worker.assignment import Assignment
from sandherd_worker.emitter import Emitter, now
from sandherd_worker.processes import end, left_behind
from sandherd_worker.spool import Spool

_REASON: Final = "worker_lost"
_log: Final = logs.get("recovery")


async def recover(who: Assignment, spool: Spool, emitter: Emitter) -> None:
    """Say what the lost worker could not say any more; nothing if it had said its last word. Raises `SpoolError`."""
    await end(lambda: left_behind(who.sandbox) - {os.getpid()}, grace=0)
    if spool.closed:
        return
    for damage in spool.damage:
        _log.warning("a torn end was cut off; nothing that was promised was in it", damage=damage)
        await emitter.emit(AgentError(error=f"the spool had a torn end: {damage}", phase="recovery"), last_words=True)
    lost = AgentFailed(error="the worker was lost", error_type="worker_lost", signal=who.lost_signal)
    await emitter.emit(lost, last_words=True)
    await emitter.emit(AgentShutdown(reason=_REASON, timestamp=now()), last_words=True)
