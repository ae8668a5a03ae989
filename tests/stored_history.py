"""Waits until the stored history of a herd has reached the stream: subscribers get events before they are stored."""

import asyncio
from contextlib import suppress

from sandherd.client import Herd, HerdError
from tests.patience import PATIENCE


async def all_stored(herd: Herd) -> None:
    """Wait until event-ingest has stored all events that the stream has at this moment; the request is retried."""
    async with asyncio.timeout(PATIENCE):
        while True:
            with suppress(HerdError):
                if not (await herd.audit()).unstored:
                    return
            await asyncio.sleep(0.05)
