"""The broker of a stack, killed while it is being started."""

import asyncio
import gc
import os
import random
import signal
from contextlib import suppress

import pytest

from sandherd.stack.broker import Broker
from sandherd.stack.child import ChildFailedError
from tests.patience import PATIENCE

pytestmark = [
    pytest.mark.faults,
    # nats-py forgets the writers of connections that are lost while it connects; the kernel has their ends already.
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"),
]

STARTS = 40
LATEST = 0.2
"""A start takes about so long, in seconds."""
MOMENTS = random.Random(40)


async def strike(broker: Broker, before: int, moment: float) -> None:
    """Kill what is started next, so long after it began."""
    while broker.child.pid == before:
        await asyncio.sleep(0.001)
    await asyncio.sleep(moment)  # this is the moment, and nothing is waited for
    with suppress(ProcessLookupError):
        os.kill(broker.child.pid, signal.SIGKILL)


async def test_a_kill_at_any_moment_of_a_start_is_told_as_one(herd: Broker) -> None:
    """At once, by the one error that its keeper starts it again for; any other would end the whole stack."""
    told = []
    for _ in range(STARTS):
        await herd.kill()
        striking = asyncio.create_task(strike(herd, herd.child.pid, MOMENTS.uniform(0, LATEST)))
        try:
            async with asyncio.timeout(PATIENCE):
                await herd.start()
        except ChildFailedError as error:
            told.append(str(error))
        await striking
    assert any("while it was being provisioned" in text for text in told), told
    await herd.kill()
    await herd.start()
    gc.collect()  # so that what was forgotten is found here, and not in another test
