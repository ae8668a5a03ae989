"""The start of a stack's broker: it is killed during the start, or another program takes its port."""

import asyncio
import gc
import os
import random
import signal
import socket
from contextlib import suppress
from pathlib import Path

import pytest

from sandherd.stack import nats
from sandherd.stack.broker import Broker
from sandherd.stack.child_process import ChildFailedError
from sandherd.stack.nats import NatsServer
from tests.patience import PATIENCE

pytestmark = [
    pytest.mark.faults,
    # nats-py drops the writers of connections that are lost while it connects; the kernel has their ends already.
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"),
]

STARTS = 12
MOMENTS = random.Random(40)


async def kill_next_start(broker: Broker, before: int, moment: float) -> None:
    """Kill the next process that is started, `moment` seconds after its start."""
    while broker.child.pid == before:
        await asyncio.sleep(0.001)
    await asyncio.sleep(moment)  # this is the moment; there is nothing to wait for
    with suppress(ProcessLookupError):
        os.kill(broker.child.pid, signal.SIGKILL)


async def start(broker: Broker) -> float:
    """Restart the broker. Returns how long that takes at present, in seconds."""
    await broker.kill()
    began = asyncio.get_running_loop().time()
    await broker.start()
    return asyncio.get_running_loop().time() - began


async def test_kill_during_a_start_is_reported_as_such(herd: Broker) -> None:
    """The error makes the supervisor restart the broker; any other error would end the stack."""
    steps: list[str] = []
    takes = await start(herd)
    deadline = asyncio.get_running_loop().time() + PATIENCE
    starts = 0
    while starts < STARTS or not any("while it was being provisioned" in text for text in steps):
        assert asyncio.get_running_loop().time() < deadline or starts < STARTS, steps
        starts += 1
        await herd.kill()
        killing = asyncio.create_task(kill_next_start(herd, herd.child.pid, MOMENTS.uniform(0, takes)))
        try:
            async with asyncio.timeout(PATIENCE):
                await herd.start()
        except ChildFailedError as error:
            steps.append(str(error))
        await killing
    await start(herd)
    gc.collect()  # so that leaked resources are found here, and not in another test


async def test_port_that_another_program_takes_first_is_chosen_again(
    herd: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A chosen port may be taken when the server listens on it; a port that a caller requires is not replaced."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = other.getsockname()[1]
        choices = iter((taken, taken, nats.free_port()))
        monkeypatch.setattr(nats, "free_port", lambda: next(choices))
        async with NatsServer(tmp_path / "any", herd._tokens) as server:
            assert server.port != taken
        with pytest.raises(ChildFailedError, match="address already in use"):
            await NatsServer(tmp_path / "required", herd._tokens, port=taken).start()
