"""Three nats-servers under load are killed one after the other: nothing is lost or duplicated.

`make test` kills until the streams of events and of commands have lost their leaders, which one or two kills do. With
SANDHERD_CLUSTER_KILLS it kills until each stream and each consumer has lost its leader once, which usually three kills
do, and then further times; `make soak` sets it to 12. The pauses are printed and not asserted: nearly all of a pause is
the servers' own time for an election, 4 to 9 s after the last message of a killed leader, which is not a setting; see
docs/operating.md.
"""

import asyncio
import json
import os
import shutil
import signal
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import asyncpg
import nats.errors
import nats.js.errors
import pytest

from sandherd.bus.connection import Bus, BusError, ConnectionIdentity
from sandherd.bus.identity import HerdIdentity as Keys
from sandherd.bus.identity import Registrar, write_secret
from sandherd.bus.publisher import EventPublisher
from sandherd.cli.doctor.checks import examine
from sandherd.cli.doctor.infrastructure import check_servers
from sandherd.client import Context, Herd, HerdError
from sandherd.concurrency import cancel_and_wait
from sandherd.contracts.commands import CommandHarness, RetryPolicy, TaskSpec
from sandherd.contracts.errors import Code
from sandherd.contracts.events.monitor import MonitorConductorReported
from sandherd.contracts.states import TaskState
from sandherd.contracts.streams import BUCKETS, CONSUMERS, STREAMS
from sandherd.process_signals import ended
from sandherd.stack.control import OtherSizeError, StackStatus, down, status, up
from tests.faults.conftest import Stack, eventually
from tests.patience import PATIENCE

pytestmark = [pytest.mark.faults, pytest.mark.timeout(900)]

FURTHER_KILLS = int(os.environ.get("SANDHERD_CLUSTER_KILLS", "0"))
SERVERS = ("nats-1", "nats-2", "nats-3")
SERVICES = ("spawner", "event-ingest", "monitor", "message-relay", "gateway")
COUNTING_AGENTS = 2
AGENT = """
number=0
until test -e stop; do
  number=$((number + 1))
  echo '{"type":"agent.message","data":{"content":"'$number'","content_length":1}}' >&3
  test $((number % 5)) != 0 || sleep 0.4
done
echo '{"type":"agent.message","data":{"content":"end '$number'","content_length":1}}' >&3
"""
"""A program that counts until it is stopped."""
VOICE_EVERY = 0.2
ALL = {stream.name for stream in STREAMS} | {bucket.stream for bucket in BUCKETS}
ALL |= {f"{consumer.stream} > {consumer.name}" for consumer in CONSUMERS}
WANTED = ALL if FURTHER_KILLS else {"EVENTS", "COMMANDS"}
"""The streams, and consumers with theirs, that must lose their leader."""


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    """A stack with three servers; nothing of it is left afterwards."""
    home = Path(tempfile.mkdtemp(prefix="cluster-"))
    try:
        asyncio.run(up(home, nats=3))
        yield Stack(home)
    finally:
        asyncio.run(down(home))
        shutil.rmtree(home, ignore_errors=True)


@asynccontextmanager
async def connected(stack: Stack, credentials: Path, name: str) -> AsyncIterator[Bus]:
    url = str((await status(stack.home)).nats_url)
    who = ConnectionIdentity.file(credentials)
    async with Bus.open(url, name=name, identity=who, inbox=f"_INBOX_{name}", connect_timeout=PATIENCE) as bus:
        yield bus


async def leaders(stack: Stack) -> dict[str, str]:
    """The server that leads each stream and each consumer. Raises nats-py's error while one has none."""
    path = stack.home / "creds" / "provisioner.creds"
    write_secret(path, Registrar(Keys(stack.home / "identity")).mint_stream_admin())
    found: dict[str, str] = {}
    async with connected(stack, path, "provisioner") as bus:
        for info in await bus.js.streams_info():
            assert info.config.num_replicas == len(SERVERS)
            found[str(info.config.name)] = _part(info)
        for consumer in CONSUMERS:
            info = await bus.js.consumer_info(consumer.stream, consumer.name)
            found[f"{consumer.stream} > {consumer.name}"] = _part(info)
    return found


def _part(info: Any) -> str:
    return str(info.cluster.leader).replace("sandherd", "nats")


def counting() -> TaskSpec:
    return TaskSpec(
        text="count", harness=CommandHarness(argv=["/bin/sh", "-c", AGENT]), retry=RetryPolicy(max_attempts=1)
    )


async def is_known(herd: Herd, task: str) -> bool:
    """Whether the spawner has read the command: one that has lost a leader reads it again later."""
    try:
        return bool(await herd.task(task))
    except HerdError as error:
        if error.problem.code is not Code.NOT_FOUND:
            raise
        return False


async def sandbox_of(herd: Herd, task: str) -> str:
    """Wait until the task's agent works; returns its sandbox."""

    async def look() -> str | None:
        view = await herd.task(task)
        return view.sandbox if view.state is TaskState.RUNNING else None

    return await eventually(look)


class Voice:
    """Publishes one event after the other as the monitor, and notes the time of each acknowledgement."""

    def __init__(self, bus: Bus) -> None:
        self._publisher = EventPublisher(bus, "monitor")
        self.acknowledged: dict[str, float] = {}

    async def publish(self) -> None:
        """Publish until cancelled."""
        while True:
            report = MonitorConductorReported(status="coherent", coherence_score=1.0, sandboxes=0)
            published = await self._publisher.publish(report, project="default", entity="fleet")
            self.acknowledged[str(published.id)] = time.monotonic()
            await asyncio.sleep(VOICE_EVERY)

    def longest_pause(self, since: float) -> float:
        """The longest time between two acknowledgements of which the later one came after this time."""
        moments = sorted(self.acknowledged.values())
        return max((later - one for one, later in pairwise(moments) if later > since), default=0)


async def whole(stack: Stack) -> StackStatus:
    """Wait until every part of the stack is ready and every server has caught up."""

    async def look() -> StackStatus | None:
        found = await status(stack.home)
        return found if found.ready else None

    return await eventually(look)


async def lead(stack: Stack) -> dict[str, str]:
    """The leaders, once there is one for everything."""
    while True:
        try:
            return await leaders(stack)
        except (BusError, nats.errors.Error, nats.js.errors.Error, TimeoutError):
            await asyncio.sleep(0.5)


class Killing:
    """Kills one server after the other, and submits a task while there is no leader."""

    def __init__(self, stack: Stack, herd: Herd, voice: Voice) -> None:
        self._stack = stack
        self._herd = herd
        self._voice = voice
        self.lost: set[str] = set()
        self.kills = 0
        self.tasks: list[str] = []

    async def go(self) -> None:
        """Kill until each wanted leader was lost, and then as many more times as requested."""
        further = FURTHER_KILLS
        while WANTED - self.lost or further > 0:
            further -= self.lost >= WANTED
            await self._kill_the_busiest()

    async def _kill_the_busiest(self) -> None:
        await whole(self._stack)
        led = await lead(self._stack)
        wanted = (WANTED - self.lost) or WANTED
        victim, count = Counter(led[name] for name in wanted).most_common(1)[0]
        begun = time.monotonic()
        await self._stack.kill(victim)
        self.tasks.append(await self._herd.submit("one more", ["true"]))
        given = time.monotonic() - begun
        await whole(self._stack)
        await lead(self._stack)
        events = led["EVENTS"] == victim
        print(
            f"{victim} led {count} that had not lost theirs{', EVENTS' if events else ''}:"
            f" events stood still for {self._voice.longest_pause(begun):.1f} s, a task took {given:.1f} s,"
            f" all was well after {time.monotonic() - begun:.1f} s"
        )
        self.lost |= {name for name, part in led.items() if part == victim}
        self.kills += 1


@dataclass(frozen=True)
class History:
    """The stored events by source, in the broker's order."""

    published: dict[str, list[dict[str, Any]]]
    longest_pause: float
    """The longest time in seconds in which nothing was stored."""

    @classmethod
    async def read(cls, stack: Stack) -> "History":
        connection = await asyncpg.connect((await status(stack.home)).database_url)
        try:
            rows = await connection.fetch(
                "select event_document(e) as envelope, stored_at from events e order by stream_sequence"
            )
        finally:
            await connection.close()
        published = defaultdict(list)
        for row in rows:
            event = json.loads(row["envelope"])
            published[event["source"]].append(event)
        moments = sorted(row["stored_at"] for row in rows)
        return cls(published, max(((later - one).total_seconds() for one, later in pairwise(moments)), default=0.0))


def pids(found: StackStatus) -> dict[str, tuple[int | None, int]]:
    return {part.name: (part.pid, part.restarts) for part in found.parts if part.name in (*SERVICES, "postgres")}


def errors(stack: Stack) -> str:
    """The errors in the services' logs, so that a failure shows why one has ended."""
    lines = [line for path in (stack.home / "logs").glob("*.log") for line in path.read_text().splitlines()]
    return "\n".join(line.replace("\\n", "\n") for line in lines if '"level": "error"' in line)


async def test_losing_any_leader_loses_no_event_and_no_task(stack: Stack) -> None:
    """Each acknowledged event is stored once in order, each task runs once, and no service restarts."""
    before = pids(await whole(stack))
    async with stack.herd() as herd, connected(stack, stack.home / "creds" / "monitor.creds", "monitor") as bus:
        voice = Voice(bus)
        publishing = asyncio.create_task(voice.publish())
        counting_tasks = [await herd.submit(counting()) for _ in range(COUNTING_AGENTS)]
        sandboxes = [await sandbox_of(herd, task) for task in counting_tasks]
        killing = Killing(stack, herd, voice)
        try:
            await killing.go()
        finally:
            await cancel_and_wait([publishing])
        for sandbox in sandboxes:
            (stack.home / "sandboxes" / sandbox / "work" / "stop").touch()
        for task in killing.tasks:
            await eventually(partial(is_known, herd, task))
        views = [await herd.wait(task) for task in (*killing.tasks, *counting_tasks)]
        for view in views:
            _, audit = await stack.whole(herd, str(view.sandbox))
            assert (audit.missing, audit.dead) == (0, 0)
    assert [(view.state, view.attempt) for view in views] == [(TaskState.COMPLETED, 1)] * len(views)
    assert pids(await whole(stack)) == before, errors(stack)
    history = await History.read(stack)
    check(history.published, voice, [f"/sandherd/sandbox/{sandbox}" for sandbox in sandboxes])
    count = sum(map(len, history.published.values()))
    print(f"{killing.kills} kills, {count} events; nothing was stored for {history.longest_pause:.1f} s at the longest")


def check(found: dict[str, list[dict[str, Any]]], voice: Voice, counting_tasks: list[str]) -> None:
    for source, published in found.items():
        assert [event["sequence"] for event in published] == list(range(1, len(published) + 1)), source
    ids = [event["id"] for published in found.values() for event in published]
    assert len(set(ids)) == len(ids)
    assert voice.acknowledged.keys() <= set(ids)
    for source in counting_tasks:
        numbers = [event["data"]["content"] for event in found[source] if event["type"] == "agent.message"]
        count = len(numbers) - 1
        assert numbers == [*map(str, range(1, count + 1)), f"end {count}"]


async def test_three_servers_are_managed_like_one(stack: Stack) -> None:
    """Clients and services know every address; status and doctor name each server; a lost supervisor is replaced."""
    before = await whole(stack)
    assert [part.name for part in before.parts if part.name.startswith("nats")] == list(SERVERS)
    assert len(str(before.nats_url).split(",")) == len(SERVERS)
    assert Context.resolve(home=stack.home, environ={}).nats_url == before.nats_url
    for service in SERVICES:
        assert await service_log(stack, service) == before.nats_url
    await eventually(partial(is_well, stack))
    count = sum(map(len, (await History.read(stack)).published.values()))
    with pytest.raises(OtherSizeError):
        await up(stack.home, nats=1)
    assert before.supervisor_pid is not None
    os.kill(before.supervisor_pid, signal.SIGKILL)
    await ended(before.supervisor_pid)
    after = await up(stack.home)
    assert (after.ready, after.nats_url) == (True, before.nats_url)
    assert await lead(stack)
    assert sum(map(len, (await History.read(stack)).published.values())) == count
    gone = await down(stack.home)
    assert {*SERVERS, *SERVICES, "postgres", "supervisor"} == {*gone.names}


async def service_log(stack: Stack, service: str) -> str:
    """The broker's address that a service has received."""
    process = Path("/proc") / str(await stack.pid(service)) / "environ"
    return dict(line.split("=", 1) for line in process.read_text().split("\0") if line)["NATS_URL"]


async def is_well(stack: Stack) -> bool | None:
    """Whether doctor finds no problem: messages that wait after a leader's loss may be one for a moment.

    Nothing limits the disk of sandboxes here. For a killed process doctor names memory as a possible cause if the
    kernel has killed any process of this machine for it meanwhile, such as one of another test.
    """
    context = Context.resolve(home=stack.home, environ={})
    found = [*await examine(context, datetime.now(UTC)), *await check_servers(context)]
    assert sum(check.name.startswith("server ") for check in found) == len(SERVERS)
    usual = ("sandbox disk", "process ")
    return {check.state.value for check in found if not check.name.startswith(usual)} == {"ok"} or None
