"""How long it takes from `submit` to the agent's start on a branch of a repository.

The baseline of `branch.ready` is the same task without a repository. That of `branch.ready_200mb` is a plain `git
clone` of the same repository of 200 MB from the same server; our mirror of it exists, as for the second task that works
on it.
"""

import asyncio
import os
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from sandherd.client import Herd
from sandherd.client.herd import new_task
from sandherd.contracts.commands import CommandHarness, TaskSpec
from sandherd.contracts.repositories import Repository
from tests.bench import pull_requests
from tests.bench.latency import Latency, latency_of
from tests.bench.recorder import Recorder
from tests.bench.stacks import stack
from tests.doubles.git_server import git_server
from tests.integration.repositories.conftest import git

WITHIN: Final = 120.0
_COUNT: Final = 5
_FILES: Final = 4000
_FILE_BYTES: Final = 50 * 1024
"""The bytes are random, so that they are not compressed: 4,000 files of 50 KiB are 200 MB."""


async def measure(recorder: Recorder) -> None:
    """Measure on one stack, with two repositories at a git server."""
    with tempfile.TemporaryDirectory(prefix="bench-git-") as directory:
        root = Path(directory)
        for name, files in (("small", 1), ("large", _FILES)):
            await asyncio.to_thread(make_repository, root, name, files)
        async with git_server(root / "served") as server, _stack(server.url) as herd:
            for _ in recorder.each("branch.ready"):
                plain = await measure_ready(herd, None)
                recorder.add("branch.ready", await measure_ready(herd, f"{server.url}/small.git"), plain)
            for _ in recorder.each("branch.ready_200mb"):
                url = f"{server.url}/large.git"
                recorder.add("branch.ready_200mb", await measure_ready(herd, url), await measure_clone(root, url))
    await pull_requests.measure(recorder)


@asynccontextmanager
async def _stack(url: str) -> AsyncIterator[Herd]:
    async with stack({"SANDHERD_REPOSITORY_HOSTS": url}) as (herd, _):
        yield herd


def make_repository(root: Path, name: str, files: int) -> None:
    """Make a bare repository with one commit of this number of files."""
    folder = root / name
    folder.mkdir()
    git(folder, "init", "--quiet", "--initial-branch", "main")
    for number in range(files):
        path = folder / f"{number % 100}" / f"{number}.bin"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(os.urandom(_FILE_BYTES))
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "--message", "all")
    git(root, "clone", "--quiet", "--bare", str(folder), str(root / "served" / f"{name}.git"))


async def measure_ready(herd: Herd, url: str | None, *, count: int = _COUNT) -> Latency:
    """Submit one task after the other; the time is that to the start of the agent, after the checkout."""
    took = []
    for number in range(count + 1):
        seconds = await _ready(herd, url)
        if number:  # the first one makes the mirror, and warms the file cache
            took.append(seconds)
    return latency_of(took)


async def _ready(herd: Herd, url: str | None) -> float:
    task, took = new_task(), 0.0
    repository = Repository(url=url, push=False) if url else None
    spec = TaskSpec(text="nothing", harness=CommandHarness(argv=["true"]), repository=repository)
    async with asyncio.timeout(WITHIN), herd.follow(task=task, fresh=True) as events:
        begun = time.perf_counter()
        await herd.submit(spec, task=task)
        async for event in events:
            if event.type == "agent.turn_started":
                took = time.perf_counter() - begun
    return took


async def measure_clone(root: Path, url: str, *, count: int = 2) -> Latency:
    """Measure a clone of the repository as a user would make it."""
    took = []
    for _ in range(count):
        with tempfile.TemporaryDirectory(dir=root) as folder:
            begun = time.perf_counter()
            command = ["git", "clone", "--quiet", url, f"{folder}/clone"]
            await asyncio.to_thread(subprocess.run, command, check=True)
            took.append(time.perf_counter() - begun)
    return latency_of(took)
