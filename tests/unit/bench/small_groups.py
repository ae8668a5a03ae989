"""Small groups for tests of the bench. As a program, it is the bench with them: `python -m …small_groups OPTIONS`."""

import asyncio
import logging
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import structlog

from tests.bench.__main__ import main
from tests.bench.catalog import Group
from tests.bench.figures import Figure
from tests.bench.recorder import Recorder

HERE = "tests.unit.bench.small_groups"


async def measure_loud(recorder: Recorder) -> None:
    """Its program and its libraries write to both outputs."""
    structlog.get_logger().warning("a log line of a service")
    logging.getLogger("library").error("a log line of a library")
    program = await asyncio.create_subprocess_exec("echo", "a line of another program")
    await program.wait()
    for run in recorder.each("loud.rate"):
        recorder.add("loud.rate", 1000.0 + run, 500.0)


async def measure_failing(recorder: Recorder) -> None:
    recorder.begin("failing.figure", 1)
    async with asyncio.TaskGroup() as group:
        group.create_task(_fail())


async def _fail() -> None:
    raise ConnectionRefusedError("no broker at " + "nats://localhost:1 " * 12)


async def measure_lacking(recorder: Recorder) -> None:
    """Has fewer runs than it should."""
    recorder.add("lacking.figure", 1.0)


async def measure_endless(recorder: Recorder) -> None:
    """Starts a process in a session of its own and makes a file, and ends neither. Reports both to `ENDLESS`."""
    recorder.begin("endless.figure", 1)
    with tempfile.NamedTemporaryFile(delete=False) as file:
        process = subprocess.Popen(["sleep", "600"], start_new_session=True)  # noqa: ASYNC220  # asyncio would end it
    report = Path(os.environ["ENDLESS"])
    report.with_suffix(".new").write_text(f"{process.pid} {os.getpid()} {file.name}")
    report.with_suffix(".new").rename(report)
    await asyncio.Event().wait()


def _group(name: str, figure: Figure) -> Group:
    return Group(name, f"the group {name}", f"{HERE}:measure_{name}", (figure,))


GROUPS = (
    _group("loud", Figure("loud.rate", "events/s", "higher")),
    _group("failing", Figure("failing.figure", "ms")),
    _group("lacking", Figure("lacking.figure", "ms")),
    _group("endless", Figure("endless.figure", "ms")),
)

if __name__ == "__main__":
    sys.exit(main(groups=GROUPS))
