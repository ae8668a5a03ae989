"""What a worker is made of, whatever it does: opened once, and shared by its parts."""

from dataclasses import dataclass, field

from sandherd_worker.assignment import Assignment
from sandherd_worker.emitter import Emitter
from sandherd_worker.families import Families
from sandherd_worker.inbox import Inbox
from sandherd_worker.line import Line
from sandherd_worker.processes import Reaper
from sandherd_worker.spool import Spool
from sandherd_worker.stopping import Stop


@dataclass(frozen=True, kw_only=True)
class Parts:
    """One of each."""

    who: Assignment
    spool: Spool
    emitter: Emitter
    inbox: Inbox
    line: Line
    reaper: Reaper
    families: Families
    stop: Stop
    server_key: str = field(default="", repr=False)
    """What an agent server here wants to be shown; nothing where there is none."""
