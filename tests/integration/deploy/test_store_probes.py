"""The probes of Compose and of the chart's values, run verbatim against a real nats-server that fails.

The test does what an engine or a kubelet does with their exit status: it ends the server, and starts it again.
"""

import asyncio
import json
import os
import resource
import shutil
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from tempfile import mkdtemp

import pytest
import yaml

from sandherd.bus.connection import BusError
from sandherd.stack.child_process import ChildCommand, ChildProcess
from tests.engines.small_disk import SmallDisk, small_disk
from tests.integration.deploy.charts import ROOT
from tests.integration.deploy.test_deploy_setting_up import Deployed
from tests.patience import PATIENCE

pytestmark = [pytest.mark.faults, pytest.mark.timeout(1200)]
MIB = 1024 * 1024
FOUND_WITHIN = 30.0
"""Seconds until the probes fail; only `make soak` asserts it, as it depends on the machine."""
PROBES = {
    patch["path"]: patch["value"]
    for patch in yaml.safe_load((ROOT / "deploy/nats/values.yaml").read_text())["container"]["patch"]
}
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]["nats"]["healthcheck"]["test"]
WGET = ROOT / "tests/engines/standins/wget"


class Probed:
    """A nats-server of a deployment on a small disk, with the guard beside it."""

    def __init__(self, folder: Path, disk: SmallDisk) -> None:
        (folder / "data").symlink_to(disk.path)
        self.folder, self.disk = folder, disk
        self.deployed = Deployed(folder)
        self.state = folder / "store-guard" / "state"
        (folder / "bin").mkdir()
        (folder / "bin/wget").symlink_to(WGET)
        self.stored: list[str] = []

    def start(self) -> None:
        self.deployed.init()
        self.deployed.child.start()
        conf = json.loads((self.folder / "herd/nats/nats.conf").read_text())
        self.monitor = conf["http"].rpartition(":")[2]
        words = ["--url", self.deployed.url, "--data", str(self.folder / "data"), "--state", str(self.state)]
        creds = ["--credentials", str(self.folder / "herd/creds/store-guard")]
        program = [sys.executable, "-m", "sandherd.stack.server_guard", *words, *creds]
        self.guard = ChildProcess(ChildCommand(arguments=program, log=self.folder / "guard.log"))

    def start_guard(self) -> None:
        self.guard.start()

    async def run(self, command: list[str]) -> int:
        """The exit status of a probe, whose paths, port and process 1 are those of this server."""
        script = command[-1].replace("/run/store-guard", str(self.state.parent)).replace("$$", "$")
        script = script.replace(":8222/", f":{self.monitor}/").replace(" 1; ", f" {self.deployed.child.pid}; ", 2)
        path = f"{self.folder / 'bin'}:/usr/bin:/bin"
        done = await asyncio.create_subprocess_exec(
            "sh", "-c", script, env={"PATH": path}, stderr=asyncio.subprocess.PIPE
        )
        await done.communicate()
        assert done.returncode is not None
        return done.returncode

    async def ready(self) -> bool:
        return await self.run(PROBES["/readinessProbe"]["exec"]["command"]) == 0

    async def alive(self) -> bool:
        return await self.run(PROBES["/livenessProbe"]["exec"]["command"]) == 0

    async def healthy(self) -> bool:
        return await self.run(COMPOSE) == 0

    async def until(self, condition: Callable[[], Awaitable[bool]], seconds: float = PATIENCE) -> None:
        async with asyncio.timeout(seconds):
            while not await condition():
                await asyncio.sleep(0.1)  # a file and another process send no notifications

    async def publish(self) -> bool:
        """Publish as the spawner, and note whether it was acknowledged."""
        msg_id = f"event-{len(self.stored)}"
        try:
            async with self.deployed.bus("spawner") as bus:
                subject = "sandherd.v1.event.p1.task-1.task.submitted"
                await bus.publish(subject, msg_id.encode().ljust(900_000), msg_id=msg_id, timeout=1)
        except (BusError, TimeoutError):
            return False
        self.stored.append(msg_id)
        return True

    async def refuses(self) -> bool:
        return not await self.publish()

    async def restart(self) -> None:
        """End the server and start it again, as a kubelet does."""
        await self.deployed.child.stop(grace=5)
        self.deployed.child.start()

    async def check_nothing_lost(self) -> None:
        async with self.deployed.bus("provisioner") as bus:
            assert (await bus.js.stream_info("EVENTS")).state.messages >= len(self.stored)


@pytest.fixture
async def probed() -> AsyncIterator[Probed]:
    folder = Path(mkdtemp(prefix="probed-"))
    async with AsyncExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        disk = await stack.enter_async_context(small_disk(folder / "disk", size=96 * MIB, inodes=2000))
        found = Probed(folder, disk)
        found.start()
        stack.push_async_callback(found.deployed.child.kill)
        stack.push_async_callback(found.guard.kill)
        yield found


async def test_probes_find_a_server_that_does_not_store(probed: Probed) -> None:
    """The server is not ready while its disk is full or every write fails, and is restarted once that helps.

    It is ready before anything is provisioned. No acknowledged message is lost. A guard that has ended restarts
    nothing.
    """
    assert not await probed.ready()
    assert await probed.alive(), "no verdict yet: nothing is restarted"
    probed.start_guard()
    await probed.until(probed.ready)
    await probed.until(probed.healthy)
    assert probed.deployed.provision().returncode == 0
    assert await probed.publish()
    await full_disk(probed)
    await failing_writes(probed)
    await probed.check_nothing_lost()
    await ended_guard(probed)


@pytest.mark.long
async def test_probes_find_a_server_without_file_descriptors(probed: Probed) -> None:
    """The guard can't count another container's descriptors: no write is acknowledged for 15 s."""
    probed.start_guard()
    await probed.until(probed.ready)
    assert probed.deployed.provision().returncode == 0
    await no_descriptors(probed)


@pytest.mark.long
@pytest.mark.parametrize("failure", ["full disk", "failing writes", "no descriptors"])
async def test_probes_find_a_failure_within_half_a_minute(probed: Probed, failure: str) -> None:
    """The time is that from the first unstored message until Compose's and the chart's probes fail."""
    probed.start_guard()
    await probed.until(probed.ready)
    assert probed.deployed.provision().returncode == 0
    pid = probed.deployed.child.pid
    match failure:
        case "full disk":
            probed.disk.fill_bytes()
        case "failing writes":
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (4096, 4096))
        case _:
            await probed.until(probed.healthy)
            await descriptors_used_up(probed)
    await probed.until(probed.refuses)
    begun = asyncio.get_running_loop().time()
    await probed.until(lambda: negated(probed.ready()))
    # The check of Compose ends the server once that helps: it is run last, and only after a failure.
    await probed.until(lambda: negated(probed.healthy()))
    assert asyncio.get_running_loop().time() - begun < FOUND_WITHIN


async def descriptors_used_up(probed: Probed) -> None:
    """Permit the server no further open file."""
    pid = probed.deployed.child.pid
    used, (_, hard) = len(list(Path(f"/proc/{pid}/fd").iterdir())), resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (used, hard))


async def full_disk(probed: Probed) -> None:
    probed.disk.fill_bytes()
    await probed.until(probed.refuses)
    await probed.until(lambda: negated(probed.ready()))
    assert "disk full under nats" in probed.state.read_text()
    assert await probed.alive(), "a restart would not help"
    assert not await probed.healthy()
    assert probed.deployed.child.alive
    probed.disk.free()
    await probed.until(lambda: negated(probed.alive()))
    await probed.restart()
    await probed.until(probed.ready)
    assert await probed.alive()
    await probed.until(probed.publish)


async def failing_writes(probed: Probed) -> None:
    """Make every write fail; the health check of Compose ends the server itself."""
    pid = probed.deployed.child.pid
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (4096, 4096))
    await probed.until(probed.refuses)
    await probed.until(lambda: negated(probed.healthy()))
    while probed.deployed.child.alive:
        assert not (await probed.healthy() and not await probed.publish())
    probed.deployed.child.start()
    # An engine checks 5 s after the start; a check now would still read the verdict that ended the last server.
    await probed.until(probed.ready)
    await probed.until(probed.healthy)
    await probed.until(probed.publish)


async def no_descriptors(probed: Probed) -> None:
    async def exhausted() -> bool:
        # Repeatedly: a connection that ends leaves its descriptor to the next one.
        await descriptors_used_up(probed)
        return not await probed.ready()

    await probed.until(exhausted)
    await probed.until(lambda: negated(probed.alive()))
    await probed.restart()
    await probed.until(probed.ready)
    await probed.until(probed.publish)


async def ended_guard(probed: Probed) -> None:
    """Check that the last verdict of an ended guard expires: the server is not ready, and left alone."""
    await probed.guard.kill()
    old = probed.state.stat().st_mtime - 60
    for verdict in ("ok", "restart"):
        probed.state.write_text(f"{verdict}\n\n")
        os.utime(probed.state, (old, old))
        assert not await probed.ready()
        assert await probed.alive()
        assert not await probed.healthy()
        assert probed.deployed.child.alive


async def negated(found: Awaitable[bool]) -> bool:
    return not await found
