"""One task loses its worker three times and its broker five times: all events are stored once, in order."""

import json
import os
import signal
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncpg
import psutil
import pytest

from sandherd.client import Herd
from sandherd.client.herd import new_task
from sandherd.contracts.commands import CommandHarness, RetryPolicy, TaskSpec
from sandherd.contracts.requests import TaskView
from sandherd.contracts.states import TASK_ENDED, TaskState
from sandherd.stack.control import status
from sandherd_worker.spool_file import scan, segments
from tests.faults.conftest import Stack, eventually

pytestmark = [pytest.mark.faults, pytest.mark.timeout(900)]

EVENTS = 500
"""The number of messages of the agent in an attempt without a kill; it publishes most only after its command."""
EARLY = 350
"""The number of messages before that command."""
LATE = 450
"""The number of messages before the agent may end: one whose worker is to be killed must still be running."""
LOST = 3
"""The number of attempts that lose their worker, each together with the broker."""
AGENT = f"""
for number in $(seq {EVENTS}); do
  echo '{{"type":"agent.message","data":{{"content":"'$number'","content_length":'${{#number}}'}}}}' >&3
  test $((number % 20)) != 0 || sleep 0.05
  while test $number = {EARLY} && ! test -e go-{EARLY}; do sleep 0.05; done
  while test $number = {LATE} && ! test -e go-{LATE}; do sleep 0.05; done
done
"""
ENDS = {"agent.completed", "agent.failed"}


@dataclass(frozen=True)
class StoredMessage:
    """An event, by the values that distinguish it from all others."""

    source: str
    sequence: int
    id: str
    type: str
    content: str | None

    @classmethod
    def read(cls, document: bytes | str) -> "StoredMessage":
        event = json.loads(document)
        content = event["data"].get("content")
        return cls(event["source"], event["sequence"], event["id"], event["type"], content)


class Spooled:
    """The spool of one sandbox, as it is on the disk."""

    def __init__(self, stack: Stack, sandbox: str) -> None:
        self._folder = stack.home / "sandboxes" / sandbox / "state" / "spool"

    def events(self) -> list[StoredMessage]:
        """The complete events in the spool."""
        return [
            StoredMessage.read(record.payload)
            for content in _contents(path for _, path in segments(self._folder))
            for record in scan(content).records
            if record.sequence
        ]

    async def reaches(self, number: int) -> None:
        """Wait until it has the event of this number or a later one."""

        async def look() -> bool | None:
            return any(event.sequence >= number for event in self.events()) or None

        await eventually(look)


def _contents(paths: Iterable[Path]) -> Iterable[bytes]:
    for path in paths:
        try:
            yield path.read_bytes()
        except FileNotFoundError:
            continue


def worker(sandbox: str) -> int | None:
    """The process of the worker itself: neither its holder nor a fork server."""
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or [""]
        try:
            named = process.environ().get("SANDHERD_SANDBOX_ID") == sandbox
        except psutil.Error:
            continue
        if named and "python" in words[0] and "sandherd_worker.main" in words and "--recover" not in words:
            return int(process.pid)
    return None


async def attempt(herd: Herd, task: str, number: int) -> str:
    """Wait until the agent of that attempt works; returns its sandbox."""

    async def look() -> str | None:
        view = await herd.task(task)
        assert view.state not in TASK_ENDED, view
        return view.sandbox if view.attempt == number and view.state is TaskState.RUNNING else None

    return await eventually(look)


async def lose(stack: Stack, sandbox: str) -> list[StoredMessage]:
    """Kill the worker and the broker during the work; returns the events in its spool."""
    spool = Spooled(stack, sandbox)
    await spool.reaches(300)
    broker, victim = await stack.pid("nats"), worker(sandbox)
    assert victim is not None
    os.kill(broker, signal.SIGSTOP)  # stops the broker, so that the spool is not empty
    stack.allow(sandbox, EARLY)
    await spool.reaches(max(event.sequence for event in spool.events()) + 30)
    os.kill(victim, signal.SIGSTOP)
    retained = spool.events()
    os.kill(victim, signal.SIGKILL)
    os.kill(broker, signal.SIGKILL)
    return retained


async def has_restarted(stack: Stack, count: int) -> bool | None:
    """Whether this number of restarts of the broker is recorded, which happens a moment after its start."""
    return await restarts(stack) >= count or None


async def restarts(stack: Stack) -> int:
    """The number of restarts of the broker."""
    (broker,) = [part for part in (await status(stack.home)).parts if part.name == "nats"]
    return broker.restarts


async def stored(stack: Stack) -> dict[tuple[str, str], list[StoredMessage]]:
    """All events in the database, by source and subject, in the order of the broker."""
    url = (await status(stack.home)).database_url
    connection = await asyncpg.connect(url)
    try:
        rows = await connection.fetch(
            "select event_source(source, entity) as source, entity, event_document(e) as envelope from events e "
            "order by stream_sequence"
        )
    finally:
        await connection.close()
    found: dict[tuple[str, str], list[StoredMessage]] = defaultdict(list)
    for row in rows:
        found[row["source"], row["entity"]].append(StoredMessage.read(row["envelope"]))
    return found


async def ended(herd: Herd, task: str) -> TaskView:
    """Wait until the task has ended; returns it."""

    async def look() -> TaskView | None:
        view = await herd.task(task)
        return view if view.state in TASK_ENDED else None

    return await eventually(look)


def check_attempt(messages: list[StoredMessage], spooled: list[StoredMessage]) -> int:
    """Check that an attempt is complete with one end; returns the number of its agent's messages."""
    assert set(spooled) <= set(messages)
    assert [event.type for event in messages if event.type in ENDS] == [
        "agent.failed" if spooled else "agent.completed"
    ]
    assert messages[-1].type == "agent.shutdown"
    numbers = [event.content for event in messages if event.type == "agent.message"]
    assert numbers == [str(number) for number in range(1, len(numbers) + 1)]
    return len(numbers)


async def test_killing_three_workers_and_five_brokers_loses_no_event(stack: Stack) -> None:
    """Each of over 1,000 event numbers is stored once and in order, and each sandbox ends once."""
    task, sandboxes, spooled = new_task(), [], list[list[StoredMessage]]()
    harness = CommandHarness(argv=["/bin/sh", "-c", AGENT])
    before = await restarts(stack)
    async with stack.herd() as herd:
        spec = TaskSpec(
            text="count", harness=harness, retry=RetryPolicy(max_attempts=LOST + 2, first_delay_seconds=0.1)
        )
        await herd.submit(spec, task=task)
        for number in range(1, LOST + 1):
            sandboxes.append(await attempt(herd, task, number))
            spooled.append(await lose(stack, sandboxes[-1]))
        sandboxes.append(await attempt(herd, task, LOST + 1))
        for moment in (150, 300):
            await Spooled(stack, sandboxes[-1]).reaches(moment)
            await stack.kill("nats")
        for number in (EARLY, LATE):
            stack.allow(sandboxes[-1], number)
        view = await ended(herd, task)
        audits: list[Any] = [(await stack.whole(herd, sandbox))[1] for sandbox in sandboxes]
    assert (view.state, view.attempt) == (TaskState.COMPLETED, LOST + 1)
    assert [(audit.missing, audit.dead) for audit in audits] == [(0, 0)] * len(sandboxes)
    await eventually(lambda: has_restarted(stack, before + LOST + 2))
    assert await restarts(stack) - before == LOST + 2
    check_stored(await stored(stack), sandboxes, [*spooled, []])


def check_stored(
    found: dict[tuple[str, str], list[StoredMessage]], sandboxes: list[str], spooled: list[list[StoredMessage]]
) -> None:
    """Check the stored events of every publisher."""
    by_source: dict[str, list[int]] = defaultdict(list)
    for (source, _), messages in found.items():
        numbers = [event.sequence for event in messages]
        assert numbers == sorted(numbers), source
        by_source[source] += numbers
    for source, numbers in by_source.items():  # the monitor's source is about all sandboxes
        assert sorted(numbers) == list(range(1, len(numbers) + 1)), source
    ids = [event.id for messages in found.values() for event in messages]
    assert len(set(ids)) == len(ids)
    counts = [
        check_attempt(found[f"/sandherd/sandbox/{sandbox}", sandbox], was)
        for sandbox, was in zip(sandboxes, spooled, strict=True)
    ]
    print(f"published {counts}, in the spool when lost {[len(was) for was in spooled]}")
    assert all(spooled[:LOST])
    assert counts[-1] == EVENTS
    assert sum(counts) >= 1000
