"""Why an attempt failed, and whether the same may go well another time. Decided by these names, never by a text."""

from enum import StrEnum
from typing import Final


class ErrorType(StrEnum):
    """The `error_type` of a failed attempt. The wire value; a published one is never renamed."""

    EXIT_STATUS = "exit_status"
    """The agent's program ended with an error."""
    SIGNAL = "signal"
    """The agent's program was killed, by something other than us."""
    OUT_OF_MEMORY = "out_of_memory"
    """The agent's program took more memory than it may."""
    START = "start"
    """The agent's program could not be started."""
    MODEL_REFUSED = "model_refused"
    """The model's server refused what the agent asked of it: a wrong key, an unknown model, no credit left."""
    MODEL_UNAVAILABLE = "model_unavailable"
    """The model's server was not there, had too much to do (429), or broke, for longer than the agent tries again."""
    LIMIT_REACHED = "limit_reached"
    """The agent went round, and came to one of its limits (`stop_reason`) before its work was done."""
    WORKER_LOST = "worker_lost"
    """The worker ended without an end of its task."""
    STOPPED = "stopped"
    """The worker was asked to end by its host: the stack or the node went down."""
    INTERNAL = "internal"
    """The worker broke."""
    SPAWN_TIMEOUT = "spawn_timeout"
    """The worker did not speak in time."""
    SANDBOX_LOST = "sandbox_lost"
    """The runtime has no such sandbox any more."""
    RUNTIME_UNAVAILABLE = "runtime_unavailable"
    """The runtime could not make it; the same may work later."""
    RUNTIME_REFUSED = "runtime_refused"
    """The runtime will never make it as asked."""
    RUNTIME_QUOTA = "runtime_quota"
    """The runtime has no room for it now."""
    ATTEMPT_TIMED_OUT = "attempt_timed_out"
    """The attempt took longer than one may."""
    TASK_TIMED_OUT = "task_timed_out"
    """The task took longer than it may, with its waits and all its attempts."""
    DEPENDENCY_FAILED = "dependency_failed"
    """A task that it depends on was not completed."""
    DEAD = "dead"
    """The sandbox said nothing for too long."""
    IDLE = "idle"
    """The agent did nothing for too long."""
    STUCK = "stuck"
    """A call of the agent was in flight for too long."""
    FLOODING = "flooding"
    """The sandbox published too much, or opened too many connections, and was cut off."""
    TOO_OLD = "too_old"
    """The sandbox was older than any may get."""
    EXPIRED = "expired"
    """Its sandbox's time to live was over."""
    TERMINATED = "terminated"
    """Somebody ended its sandbox."""
    CANCELLED = "cancelled"
    """Somebody called the task off."""


TRANSIENT: Final = frozenset(
    {
        ErrorType.MODEL_UNAVAILABLE,
        ErrorType.WORKER_LOST,
        ErrorType.STOPPED,
        ErrorType.INTERNAL,
        ErrorType.SPAWN_TIMEOUT,
        ErrorType.SANDBOX_LOST,
        ErrorType.RUNTIME_UNAVAILABLE,
        ErrorType.RUNTIME_QUOTA,
        ErrorType.ATTEMPT_TIMED_OUT,
        ErrorType.DEAD,
    }
)
"""What is tried again by itself. All else is permanent: the same would come of it, or somebody wanted it so."""


def is_transient(error_type: str, also: frozenset[ErrorType] = frozenset()) -> bool:
    """Whether an attempt that failed so is tried again. A word that is not of ours is permanent."""
    return error_type in TRANSIENT or error_type in also
