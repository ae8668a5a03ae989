"""A whole herd, as `sandherd up` starts it, on a file system that is full and then has space again.

The file system is mounted in a mount namespace that ends with the test in any case.
"""

import asyncio
import json
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest

from tests.engines.private_mounts import PRIVATE_MOUNTS

pytestmark = [pytest.mark.faults, pytest.mark.long, pytest.mark.timeout(1200)]

SCRIPT = Path(__file__).parent / "full_home.sh"
SANDHERD = Path(sys.executable).with_name("sandherd")
RESUMED_WITHIN = 30
CAUSES = {"bytes": "disk full under", "inodes": "out of inodes under"}


@pytest.fixture
def folder() -> Iterator[Path]:
    found = Path(mkdtemp(prefix="full-"))
    found.chmod(0o755)
    yield found
    shutil.rmtree(found, ignore_errors=True)


async def played(folder: Path, kind: str, part: str) -> dict[str, Any]:
    options = f"size=300m,nr_inodes={8000 if kind == 'bytes' else 4000},mode=0755"
    words = [*PRIVATE_MOUNTS, str(SCRIPT), str(SANDHERD), str(folder), options, kind, part]
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*words, stdout=pipe, stderr=pipe)
    try:
        out, error = await process.communicate()
    finally:
        if process.returncode is None:
            process.terminate()  # its trap ends the herd
            await process.wait()
    if b"unshare" in error or b"mount:" in error:
        pytest.fail(f"no file system can be mounted here, run the tests as root: {error.decode()}", pytrace=False)
    found = re.split(r"^=== (\w+)\n", out.decode(), flags=re.MULTILINE)
    assert process.returncode == 0, f"{out.decode()[-3000:]}\n{error.decode()[-2000:]}"
    return {
        name: json.loads(text) if text.strip() else None for name, text in zip(found[1::2], found[2::2], strict=True)
    }


@pytest.mark.parametrize("part", [".", "nats", "postgres", "sandboxes", "sandboxes-disks"])
@pytest.mark.parametrize("kind", ["bytes", "inodes"])
async def test_herd_recovers_by_itself_when_space_is_freed(folder: Path, kind: str, part: str) -> None:
    """The home, or only broker, database, sandboxes or images, are full: the cause is named, and nothing is missing."""
    found = await played(folder, kind, part)
    (disk,) = [check for check in found["doctor"] if check["check"] == "disk"]
    assert disk["state"] == "wrong", found["doctor"]
    assert CAUSES[kind] in disk["found"]
    assert found["resumed"] < RESUMED_WITHIN
    assert "disk" in str(found["status"]) or "inodes" in str(found["status"])
    tasks = found["tasks"]["tasks"] if isinstance(found["tasks"], dict) else found["tasks"]
    ended = {task["text"]: task["state"] for task in tasks}
    assert (ended["before"], ended["after"]) == ("completed", "completed")
    assert all(task["state"] in {"completed", "failed"} for task in tasks), tasks
    audit = found["audit"]
    assert not audit.get("missing"), audit
