"""A worker on a disk that is really full: a small file system."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from sandherd_worker.spool_file import scan, segments
from sandherd_worker.worker_exit import ExitCode
from tests.engines.private_mounts import PRIVATE_MOUNTS
from tests.integration.worker.conformance.acts import Run, Say
from tests.integration.worker.conformance.adapters import Acp

pytestmark = pytest.mark.faults

MIB = 1024 * 1024
SIZE = 8 * MIB
MOUNT = 'mount -t tmpfs -o "size=$1,mode=0700" tmpfs "$2" && mkdir "$2/work" "$2/state" && echo ready && exec cat'
PRIVATE = PRIVATE_MOUNTS if os.geteuid() == 0 else ("unshare", "--map-root-user", "--mount")
ENTER = ["--mount"] if os.geteuid() == 0 else ["--user", "--preserve-credentials", "--mount"]
WAITS = """
import os, time
while not os.path.exists("go"):
    time.sleep(0.02)
"""
TALKS = """
import json, os
out = os.fdopen(int(os.environ["SANDHERD_EVENTS_FD"]), "w")
for number in range(10**6):
    data = {"content": f"{number} " + "x" * 4000, "content_length": 4000}
    out.write(json.dumps({"type": "agent.message", "data": data}) + "\\n")
    out.flush()
"""
GREEDY = """
import subprocess, time
subprocess.Popen(["/bin/sh", "-c", "while :; do head -c 65536 /dev/zero >>junk; done 2>/dev/null"])
while os.statvfs(".").f_bavail:
    time.sleep(0.01)
"""


@dataclass
class SmallDisk:
    """A file system of `SIZE` bytes, which exists as long as the process that created it."""

    path: Path
    holder: asyncio.subprocess.Process

    @property
    def seen(self) -> Path:
        """The path of the file system for processes outside."""
        return Path(f"/proc/{self.holder.pid}/root{self.path}")

    @property
    def free(self) -> int:
        """The number of free bytes."""
        found = os.statvfs(self.seen)
        return found.f_bavail * found.f_frsize

    def spooled(self) -> list[tuple[int, bytes]]:
        """The events in the spool, with their sequence numbers."""
        found = [scan(path.read_bytes()).records for _, path in segments(self.seen / "state" / "spool")]
        return [(record.sequence, record.payload) for records in found for record in records if record.sequence]


@pytest.fixture
async def disk(sandbox: Any) -> AsyncIterator[SmallDisk]:
    """The sandbox's files, its work tree and its state are on a small disk."""
    path = sandbox.state.parent / "disk"
    path.mkdir()
    pipe = asyncio.subprocess.PIPE
    holder = await asyncio.create_subprocess_exec(
        *PRIVATE, "/bin/sh", "-c", MOUNT, "sh", str(SIZE), str(path), stdin=pipe, stdout=pipe, stderr=pipe
    )
    assert holder.stdin is not None
    assert holder.stdout is not None
    assert holder.stderr is not None
    if await holder.stdout.readline() != b"ready\n":
        pytest.fail(f"nobody lets us mount here; run the tests as root: {(await holder.stderr.read()).decode()}")
    sandbox.within = ["nsenter", "--target", str(holder.pid), *ENTER]
    sandbox.environment |= {"SANDHERD_STATE_DIR": str(path / "state"), "SANDHERD_WORK_DIR": str(path / "work")}
    yield SmallDisk(path, holder)
    holder.stdin.close()
    await holder.wait()


async def whole(sandbox: Any) -> list[Any]:
    """All events in the broker, checked: once each, without a gap, and with every text of the agent from the first."""
    events = await sandbox.events()
    assert [event.sequence for event in events] == list(range(1, len(events) + 1))
    contents = [event.data.content.split()[0] for event in events if event.type == "agent.message"]
    assert contents == [str(number) for number in range(len(contents))]
    return list(events)


def check_end(events: list[Any]) -> None:
    """Check that the end states the full disk as its reason."""
    failed, shutdown = events[-2:]
    assert [event.type for event in events if event.data.terminal] == ["agent.failed"]
    assert (failed.type, failed.data.error_type, failed.data.stop_reason) == ("agent.failed", "internal", "disk_full")
    assert "No space left on device" in failed.data.error
    assert shutdown.data.reason == "spool"


@pytest.mark.own_broker
async def test_output_that_fills_the_disk_stops_the_agent(
    sandbox: Any, disk: SmallDisk, herd: Any, eventually: Any
) -> None:
    """Without the broker a full disk stops the agent; all stored events and the reason are published later."""
    sandbox.python(WAITS + TALKS)
    await sandbox.start()
    await sandbox.event("tool_use")
    await herd.kill()
    (disk.seen / "work" / "go").touch()
    await eventually(lambda: any(b"agent.failed" in event for _, event in disk.spooled()[-2:]), "the end is kept")
    stored = disk.spooled()
    await herd.restart()
    assert await sandbox.ended() == ExitCode.DRAINED, sandbox.log.read_text()[-3000:]
    events = await whole(sandbox)
    check_end(events)
    assert len(events) >= len(stored) > SIZE // 2 / 6000
    assert not list((disk.seen / "state" / "spool").glob("*.log"))


async def test_agent_that_fills_the_disk_is_stopped(sandbox: Any, disk: SmallDisk) -> None:
    """An agent that uses any freed space at once is stopped, and its end is published nevertheless."""
    sandbox.python(TALKS.replace("for number", f"{GREEDY}\nfor number", 1))
    assert await sandbox.run() == ExitCode.DRAINED, sandbox.log.read_text()[-3000:]
    check_end(await whole(sandbox))
    assert disk.free < 2 * MIB
    assert not list((disk.seen / "state" / "spool").glob("*.log"))


async def test_silent_agent_on_a_full_disk_fails_with_the_reason(sandbox: Any, disk: SmallDisk) -> None:
    """If the worker itself can't store an event, the end names the disk, and not a stop."""
    sandbox.task("head -c 100000000 /dev/zero >junk 2>/dev/null; sleep 600")
    assert await sandbox.run(HEARTBEAT_INTERVAL="0.2") == ExitCode.DRAINED, sandbox.log.read_text()[-3000:]
    check_end(await whole(sandbox))


async def test_sandbox_without_a_task_ends_with_the_reason(sandbox: Any, disk: SmallDisk) -> None:
    """If a command fills the disk, the last event and the exit status of the sandbox name the disk."""
    sandbox.bare()
    await sandbox.start(HEARTBEAT_INTERVAL="0.2")
    await sandbox.event("started")
    with (disk.seen / "work" / "junk").open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(b"x" * 4096)
    assert await sandbox.ended() == ExitCode.DISK_REFUSED, sandbox.log.read_text()[-3000:]
    error, shutdown = (await sandbox.events())[-2:]
    assert (error.type, error.data.phase, shutdown.data.reason) == ("agent.error", "spool", "spool")
    assert "No space left on device" in error.data.error


@pytest.mark.agents
async def test_agent_below_a_driver_is_stopped_on_a_full_disk(sandbox: Any, disk: SmallDisk) -> None:
    """An agent of a driver, which waits in a tool call, is ended with the reason."""
    agent = Acp(sandbox)
    agent.begins(Run("head -c 100000000 /dev/zero >junk 2>/dev/null; sleep 600"), Say("Done."))
    assert await sandbox.run(HEARTBEAT_INTERVAL="0.2") == ExitCode.DRAINED, sandbox.log.read_text()[-3000:]
    check_end(await whole(sandbox))
    assert agent.processes() == []


async def test_failing_agent_on_a_nearly_full_disk_has_its_own_end(sandbox: Any, disk: SmallDisk) -> None:
    """The work is not stored if it would take the space that the agent's own end needs."""
    sandbox.task("head -c 3000000 /dev/urandom >work; echo so be it; exit 3")
    assert await sandbox.run() == ExitCode.DRAINED, sandbox.log.read_text()[-3000:]
    (failed,) = await sandbox.events("completed", "failed")
    assert (failed.data.error_type, failed.data.exit_code) == ("exit_status", 3)
    (saved,) = await sandbox.events("work_saved")
    assert "larger than" in saved.data.left_out


async def test_lost_worker_on_a_full_disk_is_recovered(sandbox: Any, disk: SmallDisk, eventually: Any) -> None:
    """An orphaned agent continues to fill the disk: the recovery publishes the end, and that no work is stored."""
    sandbox.python(f"open('begun', 'x').close()\n{WAITS}\n{GREEDY}\nopen('full', 'x').close(); time.sleep(600)")
    await sandbox.start()
    await eventually((disk.seen / "work" / "begun").exists, "the agent works")
    sandbox.signal(signal.SIGKILL)
    await sandbox.ended()
    (disk.seen / "work" / "go").touch()  # Not earlier: the worker itself would end an agent that fills its disk.
    await eventually((disk.seen / "work" / "full").exists, "the disk is full")
    assert await sandbox.run("--recover") == ExitCode.DRAINED, sandbox.log.read_text()[-3000:]
    events = await whole(sandbox)
    assert [event.type for event in events if event.data.terminal] == ["agent.failed"]
    assert (events[-2].data.error_type, events[-1].type) == ("worker_lost", "agent.shutdown")


async def test_full_disk_at_the_start_delays_the_agent(sandbox: Any, disk: SmallDisk, eventually: Any) -> None:
    """On a full disk no agent is started until there is space."""
    sandbox.task("touch begun")
    junk = disk.seen / "junk"
    with junk.open("wb", buffering=0) as file:
        while disk.free:
            file.write(b"x" * 4096)
    await sandbox.start()
    await eventually(lambda: sandbox.log.read_text().count("No space left on device") > 1, "it tries again")
    assert not (disk.seen / "work" / "begun").exists()
    junk.unlink()
    assert await sandbox.ended() == ExitCode.DRAINED
    assert [event.type for event in await whole(sandbox)][-2:] == ["agent.completed", "agent.shutdown"]
