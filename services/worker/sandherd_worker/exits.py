"""How a worker ends: its exit status, which the runtime decides by."""

from enum import IntEnum


class ExitCode(IntEnum):
    """What the worker's exit status means. All but 0, `USAGE` and `NOT_STARTED` call for a run with `--recover`."""

    DRAINED = 0
    """All that was said is acknowledged by the broker; the directory may be removed."""
    INTERNAL = 1
    """The worker itself broke."""
    USAGE = 2
    """The environment or the task file is not one a worker can start with; nothing was said."""
    NOT_DRAINED = 3
    """It was stopped, and the broker has not acknowledged everything within the time it had."""
    REFUSED = 4
    """The spawner refused a credential: the sandbox has ended, or a newer attempt has taken its place."""
    SPOOL = 5
    """The spool could not be opened or written: a full or broken disk."""
    BUSY = 6
    """Another worker holds this state directory."""
    NOT_STARTED = 7
    """It was not allowed to begin, or was ended before it was: nothing was said, and there is nothing to recover."""
