"""Whether each runtime answers: it is asked for a sandbox that nobody has."""

import asyncio
from collections.abc import Mapping
from typing import Final

from sandherd.bus.together import end
from spawner.runtimes.contract import Runtime, RuntimeFailedError

NOBODY: Final = "sbx-nobody"
ENOUGH: Final = 2.5
"""An adapter asks again for longer than anybody waits who wants to know how it is."""


async def reach(runtimes: Mapping[str, Runtime]) -> dict[str, str | None]:
    """By name: None for a runtime that answers, else what is wrong."""
    problems = await asyncio.gather(*(_problem(runtime) for runtime in runtimes.values()))
    return dict(zip(runtimes, problems, strict=True))


async def _problem(runtime: Runtime) -> str | None:
    looking = asyncio.ensure_future(runtime.look(NOBODY))
    try:
        done, _ = await asyncio.wait([looking], timeout=ENOUGH)
        if done:
            looking.result()
        return None if done else f"no answer within {ENOUGH:g} s"
    except RuntimeFailedError as error:
        return " ".join(str(error).split())
    finally:
        await end([looking])
