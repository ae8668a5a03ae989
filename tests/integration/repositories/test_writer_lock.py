"""One process writes to a repository at a time, also while a spawner is killed."""

import asyncio
import os
import sys
from asyncio.subprocess import PIPE
from pathlib import Path
from typing import Final

import pytest

from spawner.repositories.git import in_repository, run_git
from spawner.repositories.writer_lock import WriterLock, held_descriptors
from tests.patience import PATIENCE
from tests.polling import eventually

HOLDER: Final = """
import asyncio, sys
from pathlib import Path
from spawner.repositories.git import in_repository, run_git
from spawner.repositories.writer_lock import WriterLock

async def main():
    repository = Path(sys.argv[1])
    async with WriterLock(repository).hold():
        (repository / "objects" / "tmp_obj_writing").touch()
        print("held", flush=True)
        await run_git(*in_repository(repository), "hash-object", "-w", sys.argv[2])

asyncio.run(main())
"""


@pytest.fixture
async def repository(tmp_path: Path) -> Path:
    """An empty bare repository."""
    path = tmp_path / "one.git"
    await run_git("init", "--quiet", "--bare", str(path))
    return path


async def opened(pipe: Path) -> int:
    """Open the pipe, as soon as git reads it."""

    def look() -> int | None:
        try:
            return os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
        except OSError:
            return None

    return int(await eventually(look))


async def test_git_of_a_killed_spawner_holds_the_lock_until_it_has_ended(repository: Path, tmp_path: Path) -> None:
    """Otherwise another spawner would remove its files as leftovers, or collect its objects as garbage."""
    pipe = tmp_path / "content"
    os.mkfifo(pipe)
    holder = await asyncio.create_subprocess_exec(sys.executable, "-c", HOLDER, repository, pipe, stdout=PIPE)
    assert holder.stdout is not None
    assert await holder.stdout.readline() == b"held\n"
    descriptor = await opened(pipe)
    holder.kill()
    await holder.wait()

    held: list[bool] = []

    async def next_writer() -> None:
        async with WriterLock(repository).hold():
            held.append(True)

    waiting = asyncio.create_task(next_writer())
    for _ in range(20):
        await asyncio.sleep(0)
    assert (repository / "objects" / "tmp_obj_writing").exists()
    assert not held
    os.write(descriptor, b"what git stores")
    os.close(descriptor)
    async with asyncio.timeout(PATIENCE):
        await waiting
    assert held
    assert not (repository / "objects" / "tmp_obj_writing").exists()
    _, content = await run_git(*in_repository(repository), "cat-file", "--batch-all-objects", "--batch")
    assert b"what git stores" in content


async def test_released_lock_is_free_while_git_runs(repository: Path) -> None:
    """A process that inherited the lock delays no other writer after the holder has released it."""
    lock = WriterLock(repository)
    async with lock.hold():
        [descriptor] = held_descriptors()
        late = await asyncio.create_subprocess_exec("cat", stdin=PIPE, pass_fds=[descriptor])
    assert held_descriptors() == ()
    async with asyncio.timeout(PATIENCE), WriterLock(repository).hold():
        assert late.returncode is None
    assert late.stdin is not None
    late.stdin.close()
    await late.wait()


async def test_locks_are_of_the_task_that_holds_them(repository: Path) -> None:
    """A concurrent reader passes no lock to its git, which may run as long as a remote takes."""
    entered, left = asyncio.Event(), asyncio.Event()

    async def writer() -> None:
        async with WriterLock(repository).hold():
            entered.set()
            await left.wait()

    writing = asyncio.create_task(writer())
    await entered.wait()
    assert held_descriptors() == ()
    left.set()
    await writing
