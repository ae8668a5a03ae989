"""Ends every sandbox of this host in order: what an ordered stop of a stack runs once its spawner has ended.

    sandherd-spawner-end

All of them at once: each worker is asked to end, has its grace to say so and to bring up what was said, and then
every process of the sandbox is ended. Files that belong to a subordinate uid are given to the spawner's user. No record
is changed here: the next spawner takes in what the workers have said.
The exit status is 1 if something does not end.
"""

import asyncio
import sys
from typing import Final

from sandherd.contracts.errors import ContractError
from sandherd.settings import Settings, load
from sandherd.telemetry import logs
from spawner.runtimes.choosing import enter_namespace, open_runtimes
from spawner.runtimes.contract import Runtime, RuntimeFailedError

_log: Final = logs.get("end_all")


async def end_all(runtime: Runtime, grace: float) -> list[str]:
    """End all sandboxes, each with so many seconds to end by itself. Returns those that did not end."""
    found = [seen.unit for seen in await runtime.find_all()]
    ended = await asyncio.gather(*(_end(runtime, sandbox, grace) for sandbox in found))
    for sandbox in await runtime.find_kept():
        await runtime.leave(sandbox)
    return [sandbox for sandbox, over in zip(found, ended, strict=True) if not over]


async def _end(runtime: Runtime, sandbox: str, grace: float) -> bool:
    try:
        await runtime.stop(sandbox, grace)
        await runtime.leave(sandbox)
    except (RuntimeFailedError, OSError) as error:
        _log.error("a sandbox does not end", sandbox=sandbox, error=repr(error))
        return False
    _log.info("ended", sandbox=sandbox)
    return True


async def run(settings: Settings) -> int:
    """Open the runtimes, end everything in them, and return the exit status. Raises `RuntimeFailedError`."""
    left = []
    for runtime in await open_runtimes(settings, starts=False):
        try:
            left += await end_all(runtime, settings.stop_grace)
        finally:
            await runtime.close()
    return 1 if left else 0


def main() -> int:
    """The program; its exit status."""
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
