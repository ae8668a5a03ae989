"""The CPU time (user and system) of single `sandherd` commands, beside a Python that only imports their libraries.

Each command is a new process. `run` follows a task with a single program to its end.
"""

import asyncio
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Final

from sandherd.client import Herd
from sandherd.client.herd import new_task
from sandherd.contracts.commands import CommandHarness, TaskSpec
from tests.bench.recorder import Recorder
from tests.bench.stacks import stack

TIMES: Final = 10
_PROGRAM: Final = Path(sys.executable).with_name("sandherd")
_LIBRARIES: Final = (sys.executable, "-c", "import asyncio, nats, pydantic.main, typer.main")


async def measure(recorder: Recorder) -> None:
    """Measure on a stack with one ended task; each figure is the median of `TIMES` calls."""
    async with stack() as (herd, home):
        task = await _ended_task(herd)
        for name, arguments in commands(task).items():
            for _ in recorder.each(f"cli.{name}"):
                bare = await cpu_ms(_LIBRARIES, home)
                recorder.add(f"cli.{name}", await cpu_ms((str(_PROGRAM), *arguments), home), bare)


def commands(task: str) -> Mapping[str, Sequence[str]]:
    """The arguments of each measured command."""
    return {
        "run": ("run", "nothing", "--", "true"),
        "tasks_list": ("tasks", "list"),
        "events": ("events", task),
        "logs_follow": ("logs", "-f", task),
        "status": ("status",),
    }


async def cpu_ms(program: Sequence[str], home: Path) -> float:
    """The median of `TIMES` calls, in milliseconds. The first call, which may compile modules, does not count."""
    return median([await asyncio.to_thread(_cpu_once, program, home) for _ in range(TIMES + 1)][1:])


def _cpu_once(program: Sequence[str], home: Path) -> float:
    environ = {**os.environ, "SANDHERD_HOME": str(home)}
    environ.pop("PYTHONDONTWRITEBYTECODE", None)
    with Path(os.devnull).open("wb") as silent:
        actions = [(os.POSIX_SPAWN_DUP2, silent.fileno(), stream) for stream in (1, 2)]
        process = os.posix_spawn(program[0], list(program), environ, file_actions=actions)
        _, status, used = os.wait4(process, 0)
    if code := os.waitstatus_to_exitcode(status):
        raise RuntimeError(f"{' '.join(program)} ended with {code}")
    return (used.ru_utime + used.ru_stime) * 1000


async def _ended_task(herd: Herd) -> str:
    task = new_task()
    async with herd.follow(task=task, fresh=True) as events:
        await herd.submit(TaskSpec(text="nothing", harness=CommandHarness(argv=["true"])), task=task)
        async for _ in events:
            pass
    return task
