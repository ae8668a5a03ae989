"""The local stack: broker, database and services, as processes on one machine."""

import sandherd.bus  # noqa: F401  # first: loads nats-py without what only websockets need
from sandherd.stack.control import ShutdownResult, StackStatus, down, status, up
from sandherd.stack.home import Home, StackPhase, read_context
from sandherd.stack.part_logs import PartLog, log_names
from sandherd.stack.start_failure import StackFailedError
from sandherd.stack.status import PartStatus

__all__ = [
    "Home",
    "PartLog",
    "PartStatus",
    "ShutdownResult",
    "StackFailedError",
    "StackPhase",
    "StackStatus",
    "down",
    "log_names",
    "read_context",
    "status",
    "up",
]
