"""`sandherd up` with a home on a file system that is too small, or full, mounted in the test's mount namespace."""

import asyncio
import re
import shutil
from asyncio.subprocess import PIPE
from collections.abc import Iterator
from pathlib import Path
from tempfile import mkdtemp

import pytest

from sandherd.bus.provision import ProvisionError
from sandherd.stack.disk_space import (
    EXISTING_BROKER,
    EXISTING_DATABASE,
    NEW_BROKER,
    NEW_DATABASE,
    RECORDS,
    missing_space,
    refused_for_space,
)
from tests.engines.private_mounts import PRIVATE_MOUNTS
from tests.engines.small_disk import small_disk
from tests.preloaded_cli import preloaded

pytestmark = [pytest.mark.faults, pytest.mark.timeout(900)]

SCRIPT = Path(__file__).parent / "small_home.sh"
MIB = 1 << 20
NEW_MIB = (NEW_DATABASE + NEW_BROKER + RECORDS).bytes // MIB
EXISTING_MIB = (EXISTING_DATABASE + EXISTING_BROKER + RECORDS).bytes // MIB


@pytest.fixture
def sandherd() -> Iterator[tuple[Path, int]]:
    """The command as forks of a process with its own mounts, and that process."""
    programs = Path(mkdtemp(prefix="c-"))
    try:
        with preloaded(programs, lambda *words: [*PRIVATE_MOUNTS, *words]) as found:
            yield found
    finally:
        shutil.rmtree(programs, ignore_errors=True)


async def played(folder: Path, program: Path, server: int) -> dict[str, tuple[int, str]]:
    """The exit status and standard error of each `up`."""
    sizes = (str(NEW_MIB - 1), str(NEW_MIB + 1), str(EXISTING_MIB + 1))
    command = ["nsenter", f"--mount=/proc/{server}/ns/mnt", str(SCRIPT), str(program), str(folder), *sizes]
    process = await asyncio.create_subprocess_exec(*command, stdout=PIPE, stderr=PIPE)
    try:
        out, error = await process.communicate()
    finally:
        if process.returncode is None:
            process.terminate()  # its trap ends the stack
            await process.wait()
    if b"nsenter" in error or b"mount:" in error:
        pytest.fail(f"no file system can be mounted here, run the tests as root: {error.decode()}", pytrace=False)
    parts = re.split(r"^=== (\S+) ?(\d*)\n", out.decode(), flags=re.MULTILINE)[1:]
    return {
        name: (int(status or 0), text) for name, status, text in zip(parts[::3], parts[1::3], parts[2::3], strict=True)
    }


async def test_up_states_the_needed_space_before_it_writes(folder: Path, sandherd: tuple[Path, int]) -> None:
    """On a too small disk one line has the free and the needed space, and nothing is created; a sufficient one works.

    An existing herd needs less. On a full disk it is not started, and the error does not advise deleting its data; with
    space again it has all its tasks.
    """
    found = await played(folder, *sandherd)
    status, error = found["too-small"]
    assert (status, found["created"][1]) == (1, "")
    assert re.fullmatch(
        rf"sandherd: \S+ has \d+ MiB free, and not the {NEW_MIB} MiB that a new stack needs .*\n", error
    )
    assert found["smallest"] == (0, ""), found
    assert found["ran"][0] == 0
    status, error = found["full"]
    assert status == 1
    assert re.fullmatch(
        rf"sandherd: \S+ has 0 MiB free, and not the {EXISTING_MIB} MiB that the stack needs .*\n", error
    )
    for text in (found["too-small"][1], error):
        assert "delete" not in text
        assert "free space there" in text
    assert found["freed"] == (0, ""), found
    assert '"state": "completed"' in found["tasks"][1]


async def test_disk_that_fills_during_the_start_is_named(tmp_path: Path) -> None:
    """The reported error names the disk, even after partial files are removed; other errors do not name space."""
    async with small_disk(tmp_path / "disk", size=200 * MIB, inodes=50) as disk:
        assert "free inodes, and not the" in str(missing_space(disk.path / "home", 1))
    home = tmp_path / "home"
    assert missing_space(home, 1) is None
    for reported in ("initdb: could not write: No space left on device", "consumer X: disk full"):
        assert "the disk was full while the stack started" in str(refused_for_space(home, 1, reported))
    assert refused_for_space(home, 3, "event-ingest: ended 3 times") is None
    assert refused_for_space(home, 1, str(ProvisionError("stream X: storage type can not be changed"))) is None
