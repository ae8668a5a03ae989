"""The local Postgres on a full file system that then has space, also when it can't write its log (WAL)."""

import asyncio
import json
import shutil
import sys
from asyncio.subprocess import PIPE
from collections.abc import Iterator
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest

from tests.engines.private_mounts import PRIVATE_MOUNTS
from tests.patience import PATIENCE

pytestmark = [pytest.mark.faults, pytest.mark.timeout(900)]

PROGRAM = "tests.integration.stack.filled_postgres"
RESUMED_WITHIN = 30
"""Seconds; only `make soak` asserts it, as it depends on the machine."""
KINDS = [
    ("bytes", "log", "keep"),
    pytest.param("bytes", "log", "kill", marks=pytest.mark.long),
    pytest.param("bytes", "table", "keep", marks=pytest.mark.long),
    pytest.param("inodes", "table", "keep", marks=pytest.mark.long),
    pytest.param("inodes", "table", "kill", marks=pytest.mark.long),
]


@pytest.fixture
def folder() -> Iterator[Path]:
    found = Path(mkdtemp(prefix="full-"))
    found.chmod(0o755)  # the server has its own user
    yield found
    shutil.rmtree(found, ignore_errors=True)


async def played(folder: Path, *words: str) -> dict[str, Any]:
    command = [*PRIVATE_MOUNTS, sys.executable, "-m", PROGRAM, str(folder), *words]
    process = await asyncio.create_subprocess_exec(*command, stdout=PIPE, stderr=PIPE)
    try:
        out, error = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()  # its Postgres ends with it
            await process.wait()
    assert process.returncode == 0, error.decode()[-3000:]
    found: dict[str, Any] = json.loads(out.decode().splitlines()[-1])
    return found


@pytest.mark.parametrize(("kind", "what", "end"), KINDS)
async def test_postgres_commits_again_after_a_full_disk(folder: Path, kind: str, what: str, end: str) -> None:
    """Postgres commits again by itself, also after it stopped or was killed; nothing committed is lost."""
    found = await played(folder, kind, what, end)
    limit = PATIENCE if (kind, what, end) == KINDS[0] else RESUMED_WITHIN
    assert found["resumed"] < limit, found["log"][-5000:]
    assert found["committed"]
    assert found["lost"] == []
    assert "No space left on device" in found["log"]
    if (kind, what) == ("bytes", "log"):
        assert "PANIC" in found["log"]
