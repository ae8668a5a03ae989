"""Checks whether each runtime responds, by looking up a sandbox that does not exist."""

import asyncio
from collections.abc import Mapping
from typing import Final

from sandherd.concurrency import cancel_and_wait
from spawner.runtimes.contract import Runtime, RuntimeFailedError

UNKNOWN_SANDBOX: Final = "sbx-nobody"
ENOUGH: Final = 2.5
"""Timeout in seconds. Adapters retry for longer than a health check may take."""


async def reach(runtimes: Mapping[str, Runtime]) -> dict[str, str | None]:
    """The problem of each runtime, by name; None for a runtime that responds."""
    problems = await asyncio.gather(*(_problem(runtime) for runtime in runtimes.values()))
    return dict(zip(runtimes, problems, strict=True))


async def _problem(runtime: Runtime) -> str | None:
    observing = asyncio.ensure_future(runtime.observe(UNKNOWN_SANDBOX))
    try:
        done, _ = await asyncio.wait([observing], timeout=ENOUGH)
        if done:
            observing.result()
        return None if done else f"no response within {ENOUGH:g} s"
    except RuntimeFailedError as error:
        return " ".join(str(error).split())
    finally:
        await cancel_and_wait([observing])
