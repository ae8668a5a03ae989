"""What a stack takes that has nothing to do: memory and processor of each part, and of each sandbox without a task.

Beside it is the bare minimum of the same: a Python program that is connected to the broker and waits. The spawner is
measured again with a real Docker Engine, when it has brought its worker to an image and ended the sandbox: it has
more loaded then, and nothing to do again.
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


async def measure(recorder: Recorder) -> None:
    """Of every process that the stack has started, and of the mean of some sandboxes without an agent that works."""
    async with stack() as (herd, home), bare(home) as program:
        parts = processes(home) | {"bare": [program]}
        await asyncio.sleep(_SETTLE)  # until a start is over with
        for _ in recorder.each("idle.spawner"):
            found = await measured(parts, _MEASURED)
            baseline = found.pop("bare")
            for name, value in found.items():
                recorder.add(f"idle.{name}", value, baseline)
        for _ in range(SANDBOXES):
            await herd.create()
        await asyncio.sleep(_SETTLE)  # until a start is over with
        parts = {"sandbox": parts["spawner"][0].children(), "bare": [program]}
        for _ in recorder.each("idle.sandbox"):
            found = await measured(parts, _MEASURED)
            mean = {name: value / SANDBOXES for name, value in found["sandbox"].items()}
            recorder.add("idle.sandbox", mean, found["bare"])


async def measure_spawner(recorder: Recorder, figure: str, herd: Herd, home: Path) -> None:
    """Of a spawner that has made a sandbox at an engine, and ended it."""
    sandbox = await herd.create()
    assert sandbox is not None  # it was waited for
    await herd.terminate(sandbox.sandbox)
    await ended(herd, sandbox.sandbox)
    async with bare(home) as program:
        await asyncio.sleep(_SETTLE)  # until a start is over with
        for _ in recorder.each(figure):
            found = await measured({"spawner": processes(home)["spawner"], "bare": [program]}, _MEASURED)
            recorder.add(figure, found["spawner"], found["bare"])


async def ended(herd: Herd, sandbox: str, seconds: float = 120) -> None:
    """Until it is so."""
    async with asyncio.timeout(seconds):
        while (await herd.sandbox(sandbox)).state not in SANDBOX_ENDED:
            await asyncio.sleep(0.1)


def processes(home: Path) -> dict[str, list[psutil.Process]]:
    """Each part of the stack there."""
    record = read_record(Home(home))
    assert record is not None
    return {name: [psutil.Process(process.pid)] for name, process in record.processes.items()}


async def measured(parts: dict[str, list[psutil.Process]], seconds: float) -> dict[str, dict[str, float]]:
    """Of each part with all that it has started."""
    whole = {name: [one for root in roots for one in descent(root)] for name, roots in parts.items()}
    before = {name: spent(processes) for name, processes in whole.items()}
    await asyncio.sleep(seconds)  # what is measured is what it takes meanwhile
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
