"""The cost of watching a work tree in which nothing changes: the share of one core, by CPU time.

Each tree has its own process, `python -m tests.bench.tree_watch <files>`; both run at the same time. The cost of the
next full comparison, divided by the time until it, is added: it happens too rarely for a bench to wait for it.
"""

import asyncio
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from sandherd.contracts.events import ArtifactRef, EventData
from sandherd_worker.file_tracker import FileTracker
from sandherd_worker.redaction import Redactor

FILES: Final = 50_000
_ROOT: Final = Path(__file__).parent.parent.parent
_SETTLING: Final = 3.0
_SECONDS: Final = 12.0
_IN_ONE: Final = 50
_GITIGNORE: Final = "*.log\n*.py[co]\nbuild/\n/dist\n!keep.log\n**/cache/*.tmp\n.env\n"


async def measure_idle_tree() -> tuple[float, float]:
    """CPU seconds per second, for a tree of 50,000 files and for an empty one."""
    ours, baseline = await asyncio.gather(_measure(FILES), _measure(0))
    return ours, baseline


async def _measure(files: int) -> float:
    program = [sys.executable, "-m", "tests.bench.tree_watch", str(files)]
    process = await asyncio.create_subprocess_exec(*program, cwd=_ROOT, stdout=asyncio.subprocess.PIPE)
    output, _ = await process.communicate()
    return float(output)


def _lay_out(work: Path, files: int) -> None:
    work.mkdir()
    (work / ".gitignore").write_text(_GITIGNORE)
    for number in range(files):
        folder = work / f"package{number // _IN_ONE // 10}" / f"part{number // _IN_ONE % 10}"
        if number % _IN_ONE == 0:
            folder.mkdir(parents=True)
        (folder / f"module{number}.py").write_text(f"VALUE = {number}\n")


async def _watch(home: Path) -> float:
    async def publish(data: EventData) -> None:
        raise RuntimeError(f"nothing has changed, and this was reported: {data!r}")

    async def put_aside(_content: bytes) -> ArtifactRef:
        raise RuntimeError("nothing has changed, and a diff was stored")

    tracker = FileTracker(home / "work", home / "shadow", Redactor(), publish, put_aside)
    await tracker.start()
    shares = []
    for seconds in (_SETTLING, _SECONDS):
        began, used = time.perf_counter(), time.process_time()
        await asyncio.sleep(seconds)
        shares.append((time.process_time() - used) / (time.perf_counter() - began))
    used = time.process_time()
    await tracker.scan()
    check = (time.process_time() - used) / tracker.pause
    await tracker.finish()
    return shares[-1] + check


def main() -> None:
    """Measure one tree, and print its cost."""
    with tempfile.TemporaryDirectory(prefix="bench-") as directory:
        home = Path(directory)
        _lay_out(home / "work", int(sys.argv[1]))
        print(asyncio.run(_watch(home)))


if __name__ == "__main__":
    main()
