"""Data of a sandbox in socket buffers. Invariant: datagrams count towards a limit, as memory does."""

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from typing import Any, Final

import pytest

from spawner.runtimes.contract import SandboxPlan
from spawner.runtimes.process import ProcessRuntime
from tests.integration.spawner.boxed import ATTACK, WORKER, attack

Open = Callable[..., Awaitable[ProcessRuntime]]
Eventually = Callable[..., Awaitable[Any]]
PlanFor = Callable[..., SandboxPlan]
MEMORY_MB: Final = 64
MIB: Final = 1024 * 1024
HOARD: Final = f"""
most, held, sent = {4 * MEMORY_MB * MIB}, [], 0
while sent < most and len(held) < 900:
    box = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    box.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 30)
    box.bind(('127.0.0.1', 0))
    box.setblocking(False)
    held.append(box)
    room = box.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        for _ in range(room // 60_000):
            try: sender.sendto(b'x' * 60_000, box.getsockname())
            except OSError: pass
            sent += 60_000
found = 0
for box in held:
    while True:
        try: found += len(box.recv(65_536))
        except OSError: break
print(json.dumps([sent, found]))
"""


async def test_unread_datagrams_count_towards_a_limit(
    open_process: Open, plan_for: PlanFor, eventually: Eventually
) -> None:
    """A sandbox sends four times its memory as datagrams to its own sockets: less than its memory can be read."""
    runtime = await open_process(WORKER)
    if runtime.groups.memory is None:
        pytest.skip("no control group limits memory here")
    sent, found = await attack(eventually, runtime, plan_for("sbx-hoard", memory_mb=MEMORY_MB), HOARD)
    assert sent > 2 * MEMORY_MB * MIB
    assert found <= MEMORY_MB * MIB
    outside = await asyncio.create_subprocess_exec(sys.executable, "-c", ATTACK + HOARD, stdout=asyncio.subprocess.PIPE)
    _, unlimited = json.loads((await outside.communicate())[0])
    assert unlimited > MEMORY_MB * MIB, "this host limits every process, so the sandbox's own limit was not tested"
