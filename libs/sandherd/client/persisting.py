"""Asking again what is safe to repeat: an answer that is late or a service that is away ends no transfer."""

import asyncio
from typing import Any, Final

from sandherd.client.errors import HerdError
from sandherd.client.link import Link
from sandherd.contracts.errors import Code

PATIENCE: Final = 30.0
"""How long nobody may answer before it is an error, in seconds."""
REST: Final = 0.2
ANSWER_SECONDS: Final = 15.0
"""The spawner waits up to 5 s longer for a worker than the worker may hold its answer back (at most 5 s)."""


async def persist(link: Link, request: Any, *, patience: float = PATIENCE) -> Any:
    """The answer, asked for again while nobody gives one. Raises `HerdError`."""
    now = asyncio.get_running_loop().time
    deadline = now() + patience
    while True:
        try:
            return await link.ask(request, timeout=ANSWER_SECONDS)
        except HerdError as error:
            if error.problem.code is not Code.UNAVAILABLE or now() >= deadline:
                raise
        await asyncio.sleep(REST)
