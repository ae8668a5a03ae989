"""What an idle stack takes: memory and CPU of each part, and of each sandbox without a task.

The baseline is a minimal Python program that is connected to the broker and waits. The spawner is measured again with a
real Docker Engine, after it has added its worker to an image and has ended a sandbox: it has loaded more code then, and
is idle again.
"""

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import psutil

from sandherd.client import Herd
from sandherd.contracts.states import SANDBOX_ENDED
from sandherd.stack.home import Home, read_context, read_record
from tests.bench.recorder import Recorder
from tests.bench.stacks import stack

SANDBOXES: Final = 4
_SETTLE: Final = 15.0
"""Seconds: after a start all processes still fill caches and open connections."""
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


async def measure(recorder: Recorder) -> None:
    """Measure each process that the stack has started, and the mean of some sandboxes without a working agent."""
    async with stack() as (herd, home), bare(home) as program:
        parts = processes(home) | {"bare": [program]}
        await asyncio.sleep(_SETTLE)  # until all processes have settled
        for _ in recorder.each("idle.spawner"):
            found = await measured(parts, _MEASURED)
            baseline = found.pop("bare")
            for name, value in found.items():
                recorder.add(f"idle.{name}", value, baseline)
        for _ in range(SANDBOXES):
            await herd.create()
        await asyncio.sleep(_SETTLE)  # until all processes have settled
        parts = {"sandbox": parts["spawner"][0].children(), "bare": [program]}
        for _ in recorder.each("idle.sandbox"):
            found = await measured(parts, _MEASURED)
            mean = {name: value / SANDBOXES for name, value in found["sandbox"].items()}
            recorder.add("idle.sandbox", mean, found["bare"])


async def measure_spawner(recorder: Recorder, figure: str, herd: Herd, home: Path) -> None:
    """Measure a spawner that has created a sandbox at an engine, and has ended it."""
    sandbox = await herd.create()
    assert sandbox is not None  # it was waited for
    await herd.terminate(sandbox.sandbox)
    await ended(herd, sandbox.sandbox)
    async with bare(home) as program:
        await asyncio.sleep(_SETTLE)  # until all processes have settled
        for _ in recorder.each(figure):
            found = await measured({"spawner": processes(home)["spawner"], "bare": [program]}, _MEASURED)
            recorder.add(figure, found["spawner"], found["bare"])


async def ended(herd: Herd, sandbox: str, seconds: float = 120) -> None:
    """Wait until the sandbox has ended."""
    async with asyncio.timeout(seconds):
        while (await herd.sandbox(sandbox)).state not in SANDBOX_ENDED:
            await asyncio.sleep(0.1)


def processes(home: Path) -> dict[str, list[psutil.Process]]:
    """The process of each part of the stack at this home."""
    record = read_record(Home(home))
    assert record is not None
    return {name: [psutil.Process(process.pid)] for name, process in record.processes.items()}


async def measured(parts: dict[str, list[psutil.Process]], seconds: float) -> dict[str, dict[str, float]]:
    """Measure each part together with all processes that it has started."""
    whole = {name: [one for root in roots for one in descent(root)] for name, roots in parts.items()}
    before = {name: spent(processes) for name, processes in whole.items()}
    await asyncio.sleep(seconds)  # the CPU time is that of this interval
    return {
        name: held(processes) | {"cpu": round((spent(processes) - before[name]) / seconds * 100, 2)}
        for name, processes in whole.items()
    }


def descent(root: psutil.Process) -> list[psutil.Process]:
    """A process, its children and their descendants."""
    return [root, *root.children(recursive=True)]


def held(processes: Sequence[psutil.Process]) -> dict[str, float]:
    """Memory in MiB: `MiB` is the proportional set size (PSS), `alone` the resident set size (RSS)."""
    found = [one.memory_full_info() for one in processes]
    return {
        "MiB": round(sum(one.pss for one in found) / 2**20, 1),
        "alone": round(sum(one.rss for one in found) / 2**20, 1),
    }


def spent(processes: Iterable[psutil.Process]) -> float:
    """CPU seconds of these processes."""
    return sum(sum(one.cpu_times()[:2]) for one in processes)


@asynccontextmanager
async def bare(home: Path) -> AsyncIterator[psutil.Process]:
    """Start the minimal program that is connected and waits."""
    known = read_context(Home(home))
    environment = {**os.environ, "NATS_URL": known["nats_url"], "SANDHERD_CREDENTIALS": known["creds"]["operator"]}
    program = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", _BARE), env=environment, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    assert program.stdout is not None
    assert await program.stdout.readline() == b"connected\n"
    try:
        yield psutil.Process(program.pid)
    finally:
        await program.communicate(b"")
