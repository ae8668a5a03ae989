"""A test that never ends, which `test_run_lifetime` interrupts. It is run by its path alone."""

import asyncio
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from sandherd.service.service import Service
from spawner.runtimes.factory import _group_name
from tests.run_lifetime import MARK

SECONDS = f"4713.{os.getpid()}"
"""The argument of the processes that are looked for: those of another run beside this one have another number."""


async def test_it_never_ends(spawner: Callable[..., Service], person: Any, home: Path) -> None:
    """A broker, a spawner, and a sandbox whose agent has started a daemon run until an interrupt."""
    async with spawner(check_interval=30).running():
        task = await person.submit(["/bin/sh", "-c", f"setsid sleep {SECONDS} & sleep {SECONDS}"])
        await person.reaches(task, "running")
        await person.eventually(lambda: len(_named(SECONDS)) >= 2)
        left = {process.pid for process in psutil.Process().children(recursive=True)} | set(_named(SECONDS))
        report = {"mark": os.environ[MARK], "group": _group_name(home / "sandboxes"), "pids": sorted(left)}
        part = Path(os.environ["ENDLESS"]).with_suffix(".part")
        part.write_text(json.dumps(report))
        part.rename(os.environ["ENDLESS"])
        await asyncio.Event().wait()


def _named(argument: str) -> list[int]:
    return [
        process.pid for process in psutil.process_iter(["cmdline"]) if process.info["cmdline"] == ["sleep", argument]
    ]
