"""Why attempts fail, and which errors are retried. Services decide by these names, never by an error's text."""

from enum import StrEnum
from typing import Final


class ErrorType(StrEnum):
    """The `error_type` of a failed attempt. The values are part of messages, so a published value is never renamed."""

    EXIT_STATUS = "exit_status"
    """The agent's program ended with an error."""
    SIGNAL = "signal"
    """The agent's program was killed by a signal that Sandherd did not send."""
    OUT_OF_MEMORY = "out_of_memory"
    """The agent's program exceeded its memory limit."""
    START = "start"
    """The agent's program could not be started."""
    MODEL_REFUSED = "model_refused"
    """The model's server refused the agent's request: a wrong key, an unknown model, no credit left."""
    MODEL_UNAVAILABLE = "model_unavailable"
    """The model's server was unreachable, overloaded (429) or failing, for longer than the agent retries."""
    LIMIT_REACHED = "limit_reached"
    """A continuous task reached one of its limits (`stop_reason`) before the work was done."""
    WORKER_LOST = "worker_lost"
    """The worker ended without reporting the end of its task."""
    STOPPED = "stopped"
    """The worker's host stopped it: the stack or the node was shut down."""
    INTERNAL = "internal"
    """The worker had an internal error."""
    SPAWN_TIMEOUT = "spawn_timeout"
    """The worker did not publish its first event in time."""
    SANDBOX_LOST = "sandbox_lost"
    """The runtime no longer has the sandbox."""
    RUNTIME_UNAVAILABLE = "runtime_unavailable"
    """The runtime could not create the sandbox; a later attempt may succeed."""
    RUNTIME_REFUSED = "runtime_refused"
    """The runtime will never create the sandbox as requested."""
    RUNTIME_QUOTA = "runtime_quota"
    """The runtime has no capacity for the sandbox at present."""
    ATTEMPT_TIMED_OUT = "attempt_timed_out"
    """The attempt exceeded its time limit."""
    TASK_TIMED_OUT = "task_timed_out"
    """The task exceeded its time limit, which includes waiting and all attempts."""
    DEPENDENCY_FAILED = "dependency_failed"
    """A task that this one depends on was not completed."""
    REPOSITORY = "repository"
    """The task's repository, or the branch that it names, can't be used."""
    DEAD = "dead"
    """The sandbox published nothing for too long."""
    IDLE = "idle"
    """The agent was idle for too long."""
    STUCK = "stuck"
    """A call of the agent was in flight for too long."""
    FLOODING = "flooding"
    """The sandbox published too much, or opened too many connections, and was cut off."""
    TOO_OLD = "too_old"
    """The sandbox exceeded the maximum age."""
    BUDGET_EXCEEDED = "budget_exceeded"
    """The budget of the task, its project or the herd was used up."""
    EXPIRED = "expired"
    """The sandbox's time to live expired."""
    TERMINATED = "terminated"
    """The sandbox was ended on request."""
    CANCELLED = "cancelled"
    """The task was cancelled on request."""


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
"""Errors that are retried automatically. All others are permanent: a retry would fail again, or the end was requested.
"""


def is_transient(error_type: str, also: frozenset[ErrorType] = frozenset()) -> bool:
    """Whether an attempt with this error is retried. `also` has further errors to retry; unknown ones are permanent."""
    return error_type in TRANSIENT or error_type in also
