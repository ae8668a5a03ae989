"""A nats-server can't store for a time: on small file systems that are really full, and without descriptors.

This is what stopped the herd permanently before: after one failed write a stream refuses until its server is restarted.
"""

import asyncio
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sandherd.bus.auth.permissions import probe_subject
from sandherd.bus.auth.setup_permissions import PROBE
from sandherd.bus.connection import BusError
from sandherd.contracts.subjects import Principal
from sandherd.stack.broker import Broker
from sandherd.stack.store_probe import StoreProbe
from tests.engines.small_disk import SmallDisk, small_disk
from tests.integration.stack.guarded_broker import MIB, RESUMED_WITHIN, SUBJECT, GuardedBroker, guarded_broker
from tests.patience import PATIENCE

pytestmark = pytest.mark.faults
FOUND_WITHIN = 15.0
"""Seconds until a server that does not store is known; only `make soak` asserts it, as it depends on the machine."""


@contextmanager
def without_descriptors(pid: int) -> Iterator[None]:
    """Permit the process no further open file."""
    used = len(list(Path(f"/proc/{pid}/fd").iterdir()))
    _, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (used, hard))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (min(4096, hard), hard))


def limit_files_to(pid: int, size: int) -> None:
    """Make every write beyond this many bytes of a file fail, until the process is restarted."""
    _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, hard))


async def found_after(found: GuardedBroker) -> float:
    """Seconds from the first message that is not stored until the problem is known."""
    await found.publish_until_refused()
    begun = asyncio.get_running_loop().time()
    await found.until(lambda: bool(found.guard.problems))
    return asyncio.get_running_loop().time() - begun


async def fail_and_resume(found: GuardedBroker, disk: SmallDisk, fill: Callable[[], None], cause: str) -> None:
    fill()
    await found.publish_until_refused()
    await found.until(lambda: bool(found.guard.problems))
    assert cause in found.guard.problems["nats"], found.guard.problems
    assert str(disk.path) in found.guard.problems["nats"]
    assert found.restarts == 0, "it would not help while nothing is free"
    disk.free()
    await found.resumed()
    await found.until(lambda: not found.guard.problems)
    assert found.restarts == 1
    await found.check_nothing_lost()


@pytest.mark.parametrize("kind", ["tmpfs", "ext4"])
async def test_broker_stores_again_after_a_full_disk(folder: Path, kind: str) -> None:
    """On a full disk the cause is named without restarts; with space it is restarted once, and nothing is lost."""
    async with (
        small_disk(folder / "disk", size=96 * MIB, inodes=2000, kind=kind) as disk,
        guarded_broker(disk.path / "h") as found,
    ):
        await fail_and_resume(found, disk, disk.fill_bytes, "disk full")


@pytest.mark.parametrize("kind", ["tmpfs", "ext4"])
async def test_broker_stores_again_after_exhausted_inodes(folder: Path, kind: str) -> None:
    """Exhausted inodes are distinguished from a full disk, and recovered from in the same way."""
    async with (
        small_disk(folder / "disk", size=96 * MIB, inodes=700, kind=kind) as disk,
        guarded_broker(disk.path / "h") as found,
    ):
        await fail_and_resume(found, disk, disk.fill_inodes, "out of inodes")


async def test_broker_stores_again_after_exhausted_descriptors(folder: Path) -> None:
    """The server reports `ok` without descriptors, and accepts no new connection: only a write shows the problem."""
    async with guarded_broker(folder / "h") as found:
        await found.until(lambda: "nats" in found.guard._states)
        assert found.broker.child.pid is not None
        with without_descriptors(found.broker.child.pid):
            await found.until(lambda: bool(found.guard.problems))
            assert "out of file descriptors" in found.guard.problems["nats"]
            assert found.restarts == 0
        await found.resumed()
        await found.until(lambda: not found.guard.problems)
        await found.check_nothing_lost()


@pytest.mark.long
async def test_disk_that_fills_twice_causes_two_restarts(folder: Path) -> None:
    """The second time leads to the same restart as the first."""
    async with (
        small_disk(folder / "disk", size=96 * MIB, inodes=2000) as disk,
        guarded_broker(disk.path / "h") as found,
    ):
        for restarts in (1, 2):
            disk.fill_bytes()
            await found.publish_until_refused()
            await found.until(lambda: bool(found.guard.problems))
            disk.free()
            assert await found.resumed() < RESUMED_WITHIN
            await found.until(lambda: not found.guard.problems)
            assert found.restarts == restarts
        await found.check_nothing_lost()


@pytest.mark.long
@pytest.mark.parametrize("fill", ["bytes", "inodes"])
async def test_full_disk_is_found_within_seconds(folder: Path, fill: str) -> None:
    """Less than 15 s pass from the first unstored message until the problem is known."""
    async with small_disk(folder / "disk", size=96 * MIB, inodes=700) as disk, guarded_broker(disk.path / "h") as found:
        getattr(disk, f"fill_{fill}")()
        assert await found_after(found) < FOUND_WITHIN


@pytest.mark.long
async def test_server_that_stores_nothing_is_found_within_seconds(folder: Path) -> None:
    """Every write fails although there is space; without descriptors the server reports `ok`."""
    async with guarded_broker(folder / "h") as found:
        assert found.broker.child.pid is not None
        limit_files_to(found.broker.child.pid, 4096)
        assert await found_after(found) < FOUND_WITHIN
    async with guarded_broker(folder / "g") as found:
        await found.until(lambda: "nats" in found.guard._states)
        assert found.broker.child.pid is not None
        with without_descriptors(found.broker.child.pid):
            begun = asyncio.get_running_loop().time()
            await found.until(lambda: bool(found.guard.problems))
            assert asyncio.get_running_loop().time() - begun < FOUND_WITHIN


async def test_server_killed_with_a_full_disk_is_restarted_until_it_stores(folder: Path) -> None:
    """The supervisor repeats failing starts, and acknowledged messages exist afterwards."""
    async with (
        small_disk(folder / "disk", size=96 * MIB, inodes=2000) as disk,
        guarded_broker(disk.path / "h") as found,
    ):
        disk.fill_bytes()
        await found.publish_until_refused()
        await found.broker.kill()
        await found.until(lambda: found.restarts > 0)
        disk.free()
        await found.resumed()
        await found.check_nothing_lost()


@pytest.mark.long
@pytest.mark.parametrize("fill", ["bytes", "inodes"])
async def test_three_servers_store_again_after_a_full_disk(folder: Path, fill: str) -> None:
    """Each of three servers on one full file system disables its store, and each is restarted."""
    async with (
        small_disk(folder / "disk", size=256 * MIB, inodes=2000) as disk,
        guarded_broker(disk.path / "h", 3) as found,
    ):
        getattr(disk, f"fill_{fill}")()
        await found.publish_until_refused()
        await found.until(lambda: len(found.guard.problems) == 3)
        disk.free()
        assert await found.resumed() < RESUMED_WITHIN
        await found.until(lambda: not found.guard.problems)
        await found.check_nothing_lost()


async def test_probe_credential_permits_the_probe_only(herd: Broker) -> None:
    """The supervisor's credential for the probe can store nothing else, and read nothing."""
    async with StoreProbe.open(*herd.probed) as probe:
        async with asyncio.timeout(PATIENCE):  # each has only seconds for its response
            while not await probe.write() or await probe.read_health({"sandherd"}) != {"sandherd": "ok"}:
                pass
        writer = probe._writer
        for subject in (SUBJECT, probe_subject(Principal.MONITOR), "$KV.tasks.p1.x", "$JS.API.STREAM.INFO.PROBE"):
            with pytest.raises(BusError):
                await writer.publish(subject, b"{}", msg_id="1", timeout=0.5)
    assert PROBE == "probe"
