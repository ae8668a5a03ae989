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
MOMENTS = random.Random(40)


async def strike(broker: Broker, before: int, moment: float) -> None:
    """Kill what is started next, so long after it began."""
    while broker.child.pid == before:
        await asyncio.sleep(0.001)
    await asyncio.sleep(moment)  # this is the moment, and nothing is waited for
    with suppress(ProcessLookupError):
        os.kill(broker.child.pid, signal.SIGKILL)


async def start(broker: Broker) -> float:
    """Start it anew; gives how long that takes just now, in seconds."""
    await broker.kill()
    began = asyncio.get_running_loop().time()
    await broker.start()
    return asyncio.get_running_loop().time() - began


async def test_a_kill_at_any_moment_of_a_start_is_told_as_one(herd: Broker) -> None:
    """At once, by the one error that its keeper starts it again for; any other would end the whole stack."""
    told: list[str] = []
    takes = await start(herd)
    deadline = asyncio.get_running_loop().time() + PATIENCE
    starts = 0
    while starts < STARTS or not any("while it was being provisioned" in text for text in told):
        assert asyncio.get_running_loop().time() < deadline or starts < STARTS, told
        starts += 1
        await herd.kill()
        striking = asyncio.create_task(strike(herd, herd.child.pid, MOMENTS.uniform(0, takes)))
        try:
            async with asyncio.timeout(PATIENCE):
                await herd.start()
        except ChildFailedError as error:
            told.append(str(error))
        await striking
    await start(herd)
    gc.collect()  # so that what was forgotten is found here, and not in another test
