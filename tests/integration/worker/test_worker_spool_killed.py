"""Promise 1: an event whose `emit()` has returned survives the death of the worker process."""

import asyncio
import random
import signal
import sys
from pathlib import Path

import pytest

from sandherd_worker.spool import Spool
from sandherd_worker.spool_file import SpoolRecord
from sandherd_worker.spool_reader import SpoolReader

EMITS = """
import asyncio, sys
from pathlib import Path
from sandherd.contracts.events.conversation import AgentMessage
from sandherd_worker.assignment import Assignment
from sandherd_worker.emitter import Emitter
from sandherd_worker.redaction import Redactor
from sandherd_worker.spool import Spool

async def talk(emitter, voice):
    for number in range(10**9):
        await emitter.emit(AgentMessage(content=f"{voice}:{number}", content_length=3))
        sys.stdout.write(f"{voice}:{number}\\n")
        sys.stdout.flush()

async def main(home):
    names = dict(PROJECT="p", SANDBOX_ID="sbx-1", TASK_ID="t", TASK_FILE="x", STATE_DIR="x", WORK_DIR="x")
    who = Assignment.read({"NATS_URL": "x", **{f"SANDHERD_{name}": value for name, value in names.items()}})
    spool = Spool.open(Path(home), limit=1 << 30)
    await asyncio.gather(*(talk(Emitter(spool, who, Redactor()), voice) for voice in range(8)))

asyncio.run(main(sys.argv[1]))
"""


async def killed_while_emitting(home: Path, lines: int) -> set[str]:
    """Run a program that prints each event's name after `emit()`, and kill it after this number of events."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", EMITS, str(home), stdout=asyncio.subprocess.PIPE, limit=1 << 24
    )
    assert process.stdout is not None
    promised = [await process.stdout.readline() for _ in range(lines)]
    process.send_signal(signal.SIGKILL)
    promised += (await process.stdout.read()).splitlines(keepends=True)
    await process.wait()
    return {line.decode().strip() for line in promised if line.endswith(b"\n")}


async def left_in(home: Path) -> list[SpoolRecord]:
    spool = Spool.open(home, limit=1 << 30)
    reader, found = SpoolReader(spool), []
    while (spooled := reader.next()) is not None:
        found.append(spooled.record)
    reader.close()
    await spool.close()
    return found


@pytest.mark.faults
async def test_emitted_events_survive_kills_in_the_spool(tmp_path: Path) -> None:
    """After kills at eight random moments, over the same spool, no emitted event is missing.

    The sequence numbers of all runs together have no gap and no duplicate.
    """
    promised: list[str] = []
    chance = random.Random(7)
    for _ in range(8):
        promised += await killed_while_emitting(tmp_path, chance.randint(1, 400))
    found = await left_in(tmp_path)
    assert [record.sequence for record in found] == list(range(1, len(found) + 1))
    texts = b"\n".join(record.payload for record in found).decode()
    contents = [part.split('"')[0] for part in texts.split('"content":"')[1:]]
    assert len(contents) == len(found)
    missing = [name for name in set(promised) if contents.count(name) < promised.count(name)]
    assert not missing, f"{len(missing)} of {len(promised)} promised events are gone: {missing[:5]}"
