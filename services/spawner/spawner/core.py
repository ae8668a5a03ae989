"""What the parts of a running spawner share, and what it is started with beside its settings."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from sandherd.bus.identity import Minter
from sandherd.bus.lease import Lease
from sandherd.settings import Settings
from spawner.live import Clock, Live
from spawner.pool.pool import Pool
from spawner.resolving import Menu
from spawner.runtimes.contract import Runtime
from spawner.sandboxes.admission import Admission
from spawner.sandboxes.keeper import Keeper
from spawner.tasks.queue import Queue

OpenRuntimes = Callable[[Settings], Awaitable[Sequence[Runtime]]]
"""Opens the runtimes, once the service runs; each is closed when it ends."""


@dataclass(frozen=True)
class Options:
    """What is not a setting."""

    open_runtimes: OpenRuntimes
    clock: Clock
    lease_seconds: float


@dataclass(frozen=True)
class Core:
    """What the parts of a running spawner share."""

    live: Live
    lease: Lease
    """To lead sandboxes, to sweep, and to fill the pool."""
    minter: Minter
    runtimes: Mapping[str, Runtime]
    menu: Menu
    queue: Queue
    admission: Admission
    pool: Pool
    keeper: Keeper
