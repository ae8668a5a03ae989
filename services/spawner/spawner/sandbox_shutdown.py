"""Stops every sandbox of this host gracefully. The stop of a stack runs this program after the spawner has ended.

    sandherd-spawner-end

All sandboxes stop concurrently: each worker receives a signal to end and a grace period to publish its remaining
events, then every process of the sandbox is ended. Files owned by a subordinate uid are given to the spawner's user. No
record is changed here: the next spawner handles the workers' events. The exit status is 1 if a sandbox does not end.
"""

import asyncio
import sys
from typing import Final

from sandherd.contracts.errors import ContractError
from sandherd.settings import Settings, load
from sandherd.telemetry import logs
from spawner.runtimes.contract import Runtime, RuntimeFailedError
from spawner.runtimes.registry import enter_namespace, open_runtimes

_log: Final = logs.get("sandbox_shutdown")


async def end_all(runtime: Runtime, grace: float) -> list[str]:
    """End all sandboxes of a runtime. Each has `grace` seconds to end by itself. Returns those that did not end."""
    found = [seen.unit for seen in await runtime.find_all()]
    ended = await asyncio.gather(*(_end(runtime, sandbox, grace) for sandbox in found))
    for sandbox in await runtime.list_quarantined():
        await runtime.release(sandbox)
    return [sandbox for sandbox, over in zip(found, ended, strict=True) if not over]


async def _end(runtime: Runtime, sandbox: str, grace: float) -> bool:
    try:
        await runtime.stop(sandbox, grace)
        await runtime.release(sandbox)
    except (RuntimeFailedError, OSError) as error:
        _log.error("sandbox not stopped", sandbox=sandbox, error=repr(error))
        return False
    _log.info("sandbox stopped", sandbox=sandbox)
    return True


async def run(settings: Settings) -> int:
    """Open the runtimes, end all their sandboxes, and return the exit status. Raises `RuntimeFailedError`."""
    left = []
    for runtime in await open_runtimes(settings, starts=False):
        try:
            left += await end_all(runtime, settings.stop_grace)
        finally:
            await runtime.close()
    return 1 if left else 0


def main() -> int:
    """Run the program and return its exit status."""
    try:
        settings = load().settings
        logs.configure("spawner-end", settings.log_level)
        enter_namespace(settings)
        return asyncio.run(run(settings))
    except (ContractError, RuntimeFailedError, OSError) as error:
        sys.stderr.write(f"sandherd-spawner-end: {error}\n")
        return 1


if __name__ == "__main__":
    sys.exit(main())
