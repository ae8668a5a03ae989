"""The memory that the spawner's client library of each remote runtime takes, beside a spawner with `process` alone."""

import asyncio
import subprocess
import sys
from typing import Final

from sandherd.worker_bundle import bundle
from tests.bench.recorder import Recorder

RUNTIMES: Final = ("docker", "kubernetes", "daytona", "remote")
_LOADING: Final = """
import importlib, sys, psutil
import spawner.main
importlib.import_module(f"spawner.runtimes.{sys.argv[1]}")
print(psutil.Process().memory_info().rss)
"""


async def measure(recorder: Recorder) -> None:
    """Measure the additional memory of the spawner for each client library, and for the archive of the worker."""
    for run in recorder.each("idle.archive"):
        bare = await asyncio.to_thread(loaded, "factory")
        recorder.add("idle.archive", {"MiB": len(bundle()) / 2**20}, {"MiB": bare})
        for name in RUNTIMES:
            recorder.begin(f"idle.client_{name}", run)
            whole = await asyncio.to_thread(loaded, f"{name}.factory")
            recorder.add(f"idle.client_{name}", {"MiB": whole - bare}, {"MiB": bare})


def loaded(module: str) -> float:
    """Resident MiB of a Python that has imported the spawner and this module of its runtimes, and started nothing."""
    command = [sys.executable, "-c", _LOADING, module]
    output = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    return int(output.stdout) / 2**20
