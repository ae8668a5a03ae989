"""The reason why the broker can't store is shown everywhere, also exhausted memory, which ends the server."""

import asyncio
import json
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import nats.js.errors
import pytest
from nats.js.api import StorageType, StreamConfig
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from sandherd.bus.storage_causes import Cause, cause_of
from sandherd.cli.doctor.checks import DISK_REMEDY, check_disks
from sandherd.cli.doctor.local_stack import check_exits
from sandherd.client.doctor.check import CheckState
from sandherd.concurrency import cancel_and_wait
from sandherd.contracts.subjects import Principal
from sandherd.service.storage_watch import StorageWatch
from sandherd.stack.broker import Broker
from sandherd.stack.home import Home, StackPhase, StackRecord, ourselves, record_of
from sandherd.stack.process_monitor import ProcessMonitor
from sandherd.stack.status import read_status
from sandherd.telemetry.meters import Meters
from tests.engines.small_disk import small_disk
from tests.integration.stack.guarded_broker import MIB, SUBJECT, GuardedBroker, guarded_broker
from tests.patience import PATIENCE

pytestmark = pytest.mark.faults


async def test_full_disk_is_reported_by_status_doctor_logs_and_readiness(folder: Path) -> None:
    """Each has the path and the free space; `sandherd status` for the broker, a service for itself."""
    async with (
        small_disk(folder / "disk", size=96 * MIB, inodes=2000) as disk,
        guarded_broker(disk.path / "h") as found,
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
        (status,) = await read_status(Home(home), running_record(found.broker))
        (doctor,) = check_disks(home)
        assert not status.ready
        assert (doctor.state, doctor.remedy) == (CheckState.WRONG, DISK_REMEDY)
        logged = {line["event"]: line["problem"] for line in lines if "problem" in line}
        assert logged.keys() >= {"broker does not store messages", "storage is exhausted"}
        for text in (status.detail, doctor.found, str(watch.problem()), *logged.values()):
            assert "disk full" in text, text
            assert str(home) in text, text
            assert "MiB" in text, text
        await cancel_and_wait([watching])


def running_record(broker: Broker) -> StackRecord:
    """The record of the server, as the supervisor writes it."""
    processes = {"nats": record_of(broker.child.pid)}
    return StackRecord(phase=StackPhase.READY, supervisor=ourselves(), processes=processes, nats_url=broker.url)


async def ended_by_another_fault(found: GuardedBroker, limit: Callable[[int], Any]) -> bool:
    """Whether Go's runtime crashed at a nil pointer instead of naming the lack of memory, as it sometimes does."""
    pid, restarts, log = found.broker.child.pid, found.restarts, found.broker.child.command.log
    assert pid is not None
    written = log.stat().st_size
    with limit(pid):
        await found.until_ended(pid)
    await found.resumed()
    assert found.restarts == restarts + 1
    return b"SIGSEGV: segmentation violation" in log.read_bytes()[written:]


async def test_broker_stores_again_after_exhausted_memory(folder: Path) -> None:
    """At the limit of its address space or control group it is restarted, the cause is named, and nothing is lost."""
    async with guarded_broker(folder / "h") as found:
        (keeper,) = found.keepers
        found.broker.child.on_start = lambda: record(folder / "h", keeper)
        for limit, cause in ((limit_address_space, "out of memory"), (memory_cgroup, "perhaps by the kernel")):
            while await ended_by_another_fault(found, limit):
                pass
            assert keeper.problem is not None
            assert cause in keeper.problem
            (check,) = check_exits(folder / "h")
            assert (check.name, check.state) == ("process nats", CheckState.WARNING)
            assert cause in check.found
        await found.check_nothing_lost()


async def test_memory_streams_at_the_limit_affect_no_declared_stream(herd: Broker) -> None:
    """nats-server names memory as the cause; no declared stream or bucket is in memory, and all continue to store."""
    async with herd.provisioner() as jetstream, herd.bus(Principal.SPAWNER) as bus:
        with pytest.raises(nats.js.errors.APIError) as refused:
            await jetstream.add_stream(StreamConfig(name="LARGE", storage=StorageType.MEMORY, max_bytes=300 * MIB))
        assert cause_of(str(refused.value)) is Cause.MEMORY
        await bus.publish(SUBJECT, b"{}", msg_id="1", timeout=PATIENCE)
        kinds = {info.config.storage for info in await jetstream.streams_info()}
    assert kinds == {StorageType.FILE}


def record(home: Path, keeper: ProcessMonitor) -> None:
    """Write the record as the supervisor does at each start."""
    (home / "run").mkdir(exist_ok=True)
    process = {"pid": keeper.part.child.pid, "mark": "", "problem": keeper.problem}
    (home / "run/state.json").write_text(json.dumps({"processes": {keeper.name: process}}))


@contextmanager
def limit_address_space(pid: int) -> Iterator[None]:
    """Permit the process no further page."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[0])
    _, hard = resource.prlimit(pid, resource.RLIMIT_AS)
    resource.prlimit(pid, resource.RLIMIT_AS, (pages * resource.getpagesize(), hard))
    yield


@contextmanager
def memory_cgroup(pid: int) -> Iterator[None]:
    """Put the process into a control group with less memory than it needs, of either version."""
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
