"""What keeps the broker from storing is named wherever a person looks; memory, too, which ends the server."""

import asyncio
import json
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import nats.js.errors
import pytest
from nats.js.api import StorageType, StreamConfig
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from sandherd.bus.storage_causes import Cause, cause_of
from sandherd.bus.storage_watch import StorageWatch
from sandherd.bus.together import end
from sandherd.client.cli.checks import State
from sandherd.client.cli.examining import DISK_REMEDY, disks
from sandherd.client.cli.process_exits import check_exits
from sandherd.contracts.subjects import Principal
from sandherd.stack.broker import Broker
from sandherd.stack.home import Home, Phase, StackRecord, ourselves, record_of
from sandherd.stack.keeping import Keeper
from sandherd.stack.looking import look_at_all
from sandherd.telemetry.meters import Meters
from tests.engines.small_disk import small_disk
from tests.integration.stack.guarded_broker import MIB, RESUMED_WITHIN, SUBJECT, kept

pytestmark = pytest.mark.faults


async def test_status_doctor_logs_and_readiness_name_a_full_disk(folder: Path) -> None:
    """Each with the path and what is free; `sandherd status` for the broker, a service for itself."""
    async with (
        small_disk(folder / "disk", size=96 * MIB, inodes=2000) as disk,
        kept(disk.path / "h") as found,
        found.broker.bus(Principal.MONITOR) as bus,
    ):
        home = disk.path / "h"
        (home / "sandboxes").mkdir()
        watch = StorageWatch("monitor", home, Meters(CollectorRegistry()), measured=True)
        watching = asyncio.create_task(watch.watch(bus))
        with capture_logs() as lines:
            disk.fill_bytes()
            await found.publish_until_refused()
            await found.until(lambda: bool(found.guard.problems) and watch.problem() is not None)
        (status,) = await look_at_all(Home(home), running_record(found.broker))
        (doctor,) = disks(home)
        assert not status.ready
        assert (doctor.state, doctor.remedy) == (State.WRONG, DISK_REMEDY)
        logged = {line["event"]: line["problem"] for line in lines if "problem" in line}
        assert logged.keys() >= {"the broker does not store", "storage is exhausted"}
        for text in (status.detail, doctor.found, str(watch.problem()), *logged.values()):
            assert "disk full" in text, text
            assert str(home) in text, text
            assert "MiB" in text, text
        await end([watching])


def running_record(broker: Broker) -> StackRecord:
    """As the supervisor records it."""
    processes = {"nats": record_of(broker.child.pid)}
    return StackRecord(phase=Phase.READY, supervisor=ourselves(), processes=processes, nats_url=broker.url)


async def test_the_broker_stores_again_after_its_memory_was_exhausted(folder: Path) -> None:
    """By its own limit of address space and by its control group's: started again, the cause named, nothing lost."""
    async with kept(folder / "h") as found:
        (keeper,) = found.keepers
        found.broker.child.started = lambda: record(folder / "h", keeper)
        for limit, cause in ((limit_address_space, "out of memory"), (memory_cgroup, "perhaps by the kernel")):
            pid, restarts = found.broker.child.pid, found.restarts
            with limit(pid):
                await found.until_ended(pid)
            assert await found.resumed() < RESUMED_WITHIN
            assert found.restarts == restarts + 1
            assert keeper.problem is not None
            assert cause in keeper.problem
            (check,) = check_exits(folder / "h")
            assert (check.name, check.state) == ("process nats", State.WORTH_A_LOOK)
            assert cause in check.found
        await found.check_nothing_lost()


async def test_streams_in_memory_that_reach_the_limit_of_all_disturb_none_of_ours(herd: Broker) -> None:
    """nats-server names memory as the cause. None of our streams and buckets is in memory, and they go on to store."""
    async with herd.provisioner() as jetstream, herd.bus(Principal.SPAWNER) as bus:
        with pytest.raises(nats.js.errors.APIError) as refused:
            await jetstream.add_stream(StreamConfig(name="LARGE", storage=StorageType.MEMORY, max_bytes=300 * MIB))
        assert cause_of(str(refused.value)) is Cause.MEMORY
        await bus.publish(SUBJECT, b"{}", msg_id="1", timeout=5)
        kinds = {info.config.storage for info in await jetstream.streams_info()}
    assert kinds == {StorageType.FILE}


def record(home: Path, keeper: Keeper) -> None:
    """As the supervisor records it with each start."""
    (home / "run").mkdir(exist_ok=True)
    process = {"pid": keeper.part.child.pid, "mark": "", "problem": keeper.problem}
    (home / "run/state.json").write_text(json.dumps({"processes": {keeper.name: process}}))


@contextmanager
def limit_address_space(pid: int) -> Iterator[None]:
    """The process gets no page more."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[0])
    _, hard = resource.prlimit(pid, resource.RLIMIT_AS)
    resource.prlimit(pid, resource.RLIMIT_AS, (pages * resource.getpagesize(), hard))
    yield


@contextmanager
def memory_cgroup(pid: int) -> Iterator[None]:
    """The process is in a control group with less memory than it needs; version 1 or 2, whichever has the memory."""
    root = Path("/sys/fs/cgroup/memory")
    first = root.is_dir()
    group = (root if first else root.parent) / f"sandherd-test-{pid}"
    group.mkdir()
    try:
        (group / "cgroup.procs").write_text(str(pid))
        (group / ("memory.limit_in_bytes" if first else "memory.max")).write_text(str(2 * MIB))
        yield
    finally:
        group.rmdir()
