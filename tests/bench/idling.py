"""What a stack takes that has nothing to do: memory and processor of each part, and of each sandbox without a task.

Beside it is the bare minimum of the same: a Python program that is connected to the broker and waits. The spawner is
measured once more with a real Docker Engine, when it has brought its worker to an image and ended the sandbox: it has
more loaded then, and nothing to do again.
"""

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import psutil

from sandherd.bundle import bundle
from sandherd.client import Herd
from sandherd.contracts.states import SANDBOX_ENDED
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
    parts = processes(home)
    async with bare(home) as program:
        parts["bare"] = [program]
        await asyncio.sleep(settle)  # until a start is over with
        found = await measured(parts, seconds)
    for _ in range(SANDBOXES):
        await herd.create()
    await asyncio.sleep(settle)  # until a start is over with
    sandboxes = await measured({"sandbox": parts["spawner"][0].children()}, seconds)
    found["sandbox"] = {name: round(value / SANDBOXES, 2) for name, value in sandboxes["sandbox"].items()}
    baseline = found.pop("bare")
    return {f"idle.{name}": figure(value, baseline) for name, value in found.items()}


async def of_containers(herd: Herd, home: Path, settle: float = _SETTLE, seconds: float = _MEASURED) -> Figure:
    """Of a spawner that has made a sandbox at an engine, and ended it."""
    sandbox = await herd.create()
    assert sandbox is not None  # it was waited for
    await herd.terminate(sandbox.sandbox)
    await ended(herd, sandbox.sandbox)
    async with bare(home) as program:
        await asyncio.sleep(settle)  # until a start is over with
        found = await measured({"spawner": processes(home)["spawner"], "bare": [program]}, seconds)
    return {"idle.spawner_docker": figure(found["spawner"], found["bare"])}


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


_LOADING: Final = """
import importlib, sys, psutil
import spawner.main
importlib.import_module(f"spawner.runtimes.{sys.argv[1]}")
print(psutil.Process().memory_info().rss)
"""
RUNTIMES: Final = ("docker", "kubernetes", "daytona", "remote")


def of_clients() -> dict[str, Figure]:
    """What the spawner has loaded for each runtime that is elsewhere, beside what it has with `process` alone."""
    bare, archive = loaded("opening"), round(len(bundle()) / 2**20, 1)
    kept = {"value": {"MiB": archive}, "unit": "MiB", "baseline": bare, "ratio": round((bare + archive) / bare, 2)}
    return {"idle.archive": kept} | {
        f"idle.client_{name}": {
            "value": {"MiB": round(whole - bare, 1)}, "unit": "MiB", "baseline": bare, "ratio": round(whole / bare, 2),
        }
        for name in RUNTIMES
        for whole in [loaded(f"{name}.opening")]
    }  # fmt: skip


def loaded(module: str) -> float:
    """All that a Python holds in MiB which has the spawner and this one loaded, and has begun nothing."""
    command = [sys.executable, "-c", _LOADING, module]
    told = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    return round(int(told.stdout) / 2**20, 1)


def figure(value: dict[str, float], baseline: dict[str, float]) -> Figure:
    """`alone` is the memory on a machine of its own, where it shares its libraries with nobody."""
    unit = "MiB, % of a core"
    return {"value": value, "unit": unit, "baseline": baseline, "ratio": round(value["MiB"] / baseline["MiB"], 2)}


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
