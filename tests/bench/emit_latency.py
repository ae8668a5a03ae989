"""How long a worker takes to make one event durable: to redact its secrets, and to write it to the disk.

Ours: the emitter with its redactor and its spool, one event after the other, as an agent emits them in a turn. The
baseline: the same documents written to a file on the same disk, each with its fsync, from the same kind of thread.

The cost of redaction is measured by a second emitter whose redactor knows no secrets. Both emit each event in turn, so
that the disk and the load of the machine are the same for both.
"""

import asyncio
import os
import tempfile
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from sandherd.contracts.events import EventData
from sandherd.contracts.events.conversation import AgentMessage
from sandherd.contracts.events.tools import AgentToolResult, AgentToolUse
from sandherd_worker.assignment import Assignment
from sandherd_worker.emitter import Emitter
from sandherd_worker.redaction import Redactor
from sandherd_worker.spool import Spool
from tests.bench.latency import Latency, latency_of

_COUNT: Final = 1000
_WARMING: Final = 300
_LIMIT: Final = 512 * 1024 * 1024
_SECRETS: Final = tuple(f"a-secret-value-of-the-task-{number}" for number in range(10))
_LINE: Final = "def build(self, path: Path) -> None:  # as long as a line of a program is, more or less\n"


async def measure_emit() -> tuple[Latency, Latency]:
    """Measure the emitter, and the bare file."""
    with tempfile.TemporaryDirectory(prefix="bench-") as directory:
        home = Path(directory)
        spool = Spool.open(home / "spool", limit=_LIMIT)
        emitter = Emitter(spool, _assignment(home), Redactor(_SECRETS))
        ours = await _each(lambda number: emitter.emit(_event(number)))
        documents = [_event(number).model_dump_json().encode() for number in range(3)]
        await spool.close()
        return ours, await _bare(home / "bare", documents)


async def measure_redaction() -> tuple[Latency, Latency]:
    """Measure the emitter with ten secrets, and one without any, which only looks for tokens of common formats."""
    with tempfile.TemporaryDirectory(prefix="bench-") as directory:
        home = Path(directory)
        spools = [Spool.open(home / name, limit=_LIMIT) for name in ("ours", "bare")]
        redactors = Redactor(_SECRETS), Redactor(())
        emitters = [Emitter(spool, _assignment(home), one) for spool, one in zip(spools, redactors, strict=True)]
        took: tuple[list[float], list[float]] = [], []
        for number in range(_WARMING + _COUNT):
            first = number % 2  # the first one finds the disk in the state in which the other one has left it
            for which in (first, 1 - first):
                took[which].append(await _timed(emitters[which].emit(_event(number))))
        for spool in spools:
            await spool.close()
        return latency_of(took[0][_WARMING:]), latency_of(took[1][_WARMING:])


def _event(number: int) -> EventData:
    """A tool call, its result, or a text, each of a usual size and with a secret in it."""
    secret, call = _SECRETS[number % len(_SECRETS)], f"call-{number}"
    match number % 3:
        case 0:
            given = {"command": f"curl -H 'Authorization: {secret}' localhost", "description": _LINE * 4}
            return AgentToolUse(turn=1, tool="Bash", tool_use_id=call, input=given)
        case 1:
            text = _LINE * 50 + secret
            return AgentToolResult(turn=1, tool_use_id=call, result=text, result_full_length=len(text))
        case _:
            return AgentMessage(turn=1, content=_LINE * 8 + secret, content_length=8)


async def _each(publish: Callable[[int], Awaitable[object]]) -> Latency:
    took = [await _timed(publish(number)) for number in range(_WARMING + _COUNT)]
    return latency_of(took[_WARMING:])


async def _timed(saying: Awaitable[object]) -> float:
    begun = time.perf_counter()
    await saying
    return time.perf_counter() - begun


async def _bare(path: Path, documents: list[bytes]) -> Latency:
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    loop = asyncio.get_running_loop()

    def write(number: int) -> None:
        os.write(file, documents[number % len(documents)])
        os.fsync(file)

    with ThreadPoolExecutor(1) as writer:
        try:
            return await _each(lambda number: loop.run_in_executor(writer, write, number))
        finally:
            os.close(file)


def _assignment(home: Path) -> Assignment:
    variables = {
        "SANDHERD_PROJECT": "default",
        "SANDHERD_SANDBOX_ID": "sbx-bench",
        "SANDHERD_TASK_ID": "task-bench",
        "NATS_URL": "nats://nowhere",
        "SANDHERD_TASK_FILE": str(home / "task.json"),
        "SANDHERD_STATE_DIR": str(home),
        "SANDHERD_WORK_DIR": str(home),
    }
    return Assignment.read(variables)
