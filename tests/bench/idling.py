"""What a stack takes that has nothing to do: memory and processor of each part, and of each sandbox without a task.

Beside it is the bare minimum of the same: a Python program that is connected to the broker and waits.
"""

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import psutil

from sandherd.client import Herd
from sandherd.stack.home import Home, read_context, read_record

SANDBOXES: Final = 4
_SETTLE: Final = 15.0
"""After a start everybody still fills caches and opens connections."""
_MEASURED: Final = 30.0

_BARE: Final = """
import asyncio, os, sys, nats

async def main():
    client = await nats.connect(os.environ["NATS_URL"], user_credentials=os.environ["SANDHERD_CREDENTIALS"])
    print("connected", flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    await client.close()

asyncio.run(main())
"""

Figure = dict[str, Any]


async def figures(herd: Herd, home: Path, settle: float = _SETTLE, seconds: float = _MEASURED) -> dict[str, Figure]:
    """Of every process that the stack has started, and of the mean of some sandboxes in which nobody works."""
    record = read_record(Home(home))
    assert record is not None
    parts = {name: [psutil.Process(process.pid)] for name, process in record.processes.items()}
    async with bare(home) as program:
        parts["bare"] = [program]
        await asyncio.sleep(settle)
        found = await measured(parts, seconds)
    for _ in range(SANDBOXES):
        await herd.create()
    await asyncio.sleep(settle)
    sandboxes = await measured({"sandbox": parts["spawner"][0].children()}, seconds)
    found["sandbox"] = {name: round(value / SANDBOXES, 2) for name, value in sandboxes["sandbox"].items()}
    baseline = found.pop("bare")
    return {f"idle.{name}": figure(value, baseline) for name, value in found.items()}


def figure(value: dict[str, float], baseline: dict[str, float]) -> Figure:
    """`alone` is the memory on a machine of its own, where it shares its libraries with nobody."""
    unit = "MiB, % of a core"
    return {"value": value, "unit": unit, "baseline": baseline, "ratio": round(value["MiB"] / baseline["MiB"], 2)}


async def measured(parts: dict[str, list[psutil.Process]], seconds: float) -> dict[str, dict[str, float]]:
    """Of each part with all that it has started."""
    whole = {name: [one for root in roots for one in descent(root)] for name, roots in parts.items()}
    before = {name: spent(processes) for name, processes in whole.items()}
    await asyncio.sleep(seconds)
    return {
        name: held(processes) | {"cpu": round((spent(processes) - before[name]) / seconds * 100, 2)}
        for name, processes in whole.items()
    }


def descent(root: psutil.Process) -> list[psutil.Process]:
    """A process and all that it has started."""
    return [root, *root.children(recursive=True)]


def held(processes: Sequence[psutil.Process]) -> dict[str, float]:
    """Memory in MiB: with their share of what other processes of this machine have, too (PSS), and with all of it."""
    found = [one.memory_full_info() for one in processes]
    return {
        "MiB": round(sum(one.pss for one in found) / 2**20, 1),
        "alone": round(sum(one.rss for one in found) / 2**20, 1),
    }


def spent(processes: Iterable[psutil.Process]) -> float:
    """Seconds of a processor."""
    return sum(sum(one.cpu_times()[:2]) for one in processes)


@asynccontextmanager
async def bare(home: Path) -> AsyncIterator[psutil.Process]:
    """The program that is connected and does nothing."""
    known = read_context(Home(home))
    told = {**os.environ, "NATS_URL": known["nats_url"], "SANDHERD_CREDENTIALS": known["creds"]["operator"]}
    program = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", _BARE), env=told, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    assert program.stdout is not None
    assert await program.stdout.readline() == b"connected\n"
    try:
        yield psutil.Process(program.pid)
    finally:
        await program.communicate(b"")
