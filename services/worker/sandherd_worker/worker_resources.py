"""The shared objects of a worker, opened once."""

from dataclasses import dataclass, field

from sandherd_worker.assignment import Assignment
from sandherd_worker.broker_session import CurrentConnection
from sandherd_worker.emitter import Emitter
from sandherd_worker.inbox import Inbox
from sandherd_worker.processes import ProcessOwnership, Reaper
from sandherd_worker.spool import Spool
from sandherd_worker.worker_exit import StopRequest


@dataclass(frozen=True, kw_only=True)
class WorkerResources:
    """The objects that all parts of one worker use."""

    assignment: Assignment
    spool: Spool
    emitter: Emitter
    inbox: Inbox
    line: CurrentConnection
    reaper: Reaper
    ownership: ProcessOwnership
    stop: StopRequest
    server_key: str = field(default="", repr=False)
    """The key that clients must present to the agent server in this sandbox; empty without an agent server."""
