"""Everything on one machine: an embedded broker and database, and the services as processes."""

import sandherd.bus  # noqa: F401  # first: it loads nats-py without what only websockets need
from sandherd.stack.control import Ended, StackFailedError, StackStatus, down, status, up
from sandherd.stack.home import Phase
from sandherd.stack.looking import PartStatus

__all__ = ["Ended", "PartStatus", "Phase", "StackFailedError", "StackStatus", "down", "status", "up"]
