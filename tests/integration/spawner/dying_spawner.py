"""A spawner that ends itself with SIGKILL at its n-th act (argument 1; 0: never). The crash tests run it.

Instead of a number, argument 1 may be a name such as `before Revoker.revoke`: the first act of this name. With `STOP`
as the second argument it stops itself there instead (SIGSTOP), until a test continues it. A number as the third
argument puts its clock ahead by that number of seconds. It may be a fork, so it prints its process id first.
"""

import os
import signal
import sys
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import uvloop

from sandherd.bus.connection import Bus
from sandherd.bus.identity.revocation import Revoker
from sandherd.settings import load
from sandherd.telemetry import logs
from spawner.live_state import utc_now
from spawner.main import compose
from spawner.records.store import Store
from spawner.runtimes.process import ProcessRuntime

LAST = sys.argv[1]
SIGNAL = signal.SIGSTOP if sys.argv[2:3] == ["STOP"] else signal.SIGKILL
AHEAD = timedelta(seconds=float(sys.argv[3])) if sys.argv[3:] else timedelta(0)
acts = 0
met: list[str] = []


def live_or_die(what: str) -> None:
    global acts  # noqa: PLW0603  # one process, one life
    acts += 1
    if LAST in {str(acts), what} and not met:
        met.append(what)
        print(f"{SIGNAL.name} {what}", file=sys.stderr, flush=True)
        os.kill(os.getpid(), SIGNAL)


def dying(owner: type, name: str) -> None:
    """Count an act before and after each call of this method."""
    method: Callable[..., Awaitable[Any]] = getattr(owner, name)

    async def dangerous(*given: Any, **named: Any) -> Any:
        live_or_die(f"before {owner.__name__}.{name}")
        found = await method(*given, **named)
        live_or_die(f"after {owner.__name__}.{name}")
        return found

    setattr(owner, name, dangerous)


dying(Store, "_write")
dying(Bus, "publish_stored")
dying(Revoker, "revoke")
for verb in ("create", "recover", "stop", "remove", "observe"):
    dying(ProcessRuntime, verb)
print(f"process {os.getpid()}", file=sys.stderr, flush=True)
settings = load().settings
logs.configure("spawner", "info")
# These tests would otherwise spend their time waiting for the dead spawner's lease.
uvloop.run(compose(settings, clock=lambda: utc_now() + AHEAD, lease_seconds=1.0).run())
