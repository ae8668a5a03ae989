"""A spawner as a separate process, some of whose sandboxes fail (`sandbox_failures`). The faults tests run it.

Its workers are the real ones, started by a few lines that make some end at once, and let some be killed.
"""

import os
import sys
from collections.abc import Sequence
from typing import Final

import uvloop

from sandherd.settings import Settings, load
from sandherd.telemetry import logs
from spawner.main import compose
from spawner.runtimes.contract import Runtime, RuntimeFailedError, RuntimeFault, SandboxPlan
from spawner.runtimes.registry import open_runtimes
from tests.faults.sandbox_failures import BUSY, LOST, NEVER_BEGINS, REFUSED, is_one_of

BEGIN_WORKER: Final = f"""
import fnmatch, os, signal, sys, time
name = os.environ.get("SANDHERD_SANDBOX_ID", "")
is_one_of = lambda endings: any(fnmatch.fnmatchcase(name, ending) for ending in endings)
if "--recover" not in sys.argv:
    if is_one_of({NEVER_BEGINS!r}):
        sys.exit("this worker never begins")
    if is_one_of({LOST!r}) and os.fork() == 0:
        worker, begun = os.getppid(), os.path.join(os.environ["SANDHERD_WORK_DIR"], "begun")
        while os.getppid() == worker and not os.path.exists(begun):
            time.sleep(0.02)
        if os.getppid() == worker:
            os.kill(worker, signal.SIGKILL)
        os._exit(0)
from sandherd_worker.main import main
sys.exit(main(sys.argv[1:]))
"""


async def open_failing(settings: Settings) -> Sequence[Runtime]:
    """A process runtime that refuses some sandboxes, and is busy at the first request for others."""
    (runtime,) = await open_runtimes(settings, (sys.executable, "-P", "-c", BEGIN_WORKER))
    create, requested = runtime.create, set()

    async def create_or_not(plan: SandboxPlan) -> None:
        if is_one_of(plan.sandbox, REFUSED):
            raise RuntimeFailedError(RuntimeFault.REFUSED, "this sandbox is not to be")
        if is_one_of(plan.sandbox, BUSY) and plan.sandbox not in requested:
            requested.add(plan.sandbox)
            raise RuntimeFailedError(RuntimeFault.UNAVAILABLE, "too busy")
        await create(plan)

    runtime.create = create_or_not  # type: ignore[method-assign]  # fails in its place
    return [runtime]


if __name__ == "__main__":
    # The test would otherwise spend its time waiting for the killed spawner's lease.
    lease = float(os.environ.get("HERD_LEASE_SECONDS", "1"))
    service = compose(load().settings, runtimes=open_failing, lease_seconds=lease)
    logs.configure("spawner", "info")
    uvloop.run(service.run())
