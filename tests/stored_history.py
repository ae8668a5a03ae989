"""The history of a herd, once it is no longer behind the stream: events are received live before they are stored."""

import asyncio
from contextlib import suppress

from sandherd.client import Herd, HerdError
from tests.patience import PATIENCE


async def all_stored(herd: Herd) -> None:
    """Wait until event-ingest has stored all that the stream holds by then; one that does not answer is asked again."""
    async with asyncio.timeout(PATIENCE):
        while True:
            with suppress(HerdError):
                if not (await herd.audit()).unstored:
                    return
            await asyncio.sleep(0.05)
