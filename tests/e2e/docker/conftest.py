"""A whole stack whose sandboxes are containers of a real Docker Engine, and the means to observe it."""

import asyncio
import os
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

import pytest
from aiodocker import Docker, DockerError
from aiodocker.volumes import DockerVolume

from sandherd.client import Context, Herd, HerdError
from sandherd.contracts.commands import CommandHarness, RetryPolicy, TaskSpec
from sandherd.contracts.requests import TaskView
from sandherd.contracts.states import SANDBOX_ENDED
from spawner.runtimes.boxes.box_files import ROOT
from tests.engines.docker import IMAGE, Engine
from tests.patience import PATIENCE
from tests.preloaded_cli import preloaded_sandherd
from tests.stored_history import all_stored

HOLD: Final = "touch began; until test -e go; do sleep 0.05; done"
"""A script of an agent that waits until the test lets it continue."""
WORK: Final = f"{ROOT}/work"
FORWARDED: Final = "forwarded-value-4711"
SETTINGS: Final = """
runtime: docker
sandbox_image: {image}
docker_network: host
docker_host: {host}
check_interval: 0.5
stop_grace: 5
forward_env: FORWARDED
sandbox_mounts: sandherd-test-data,sandherd-test-small,{folder}
profiles:
  mounted:
    mounts:
      - {{source: sandherd-test-data, target: /data, read_only: false}}
      - {{source: {folder}, target: /given}}
  full:
    mounts:
      - {{source: sandherd-test-small, target: /small, read_only: false}}
  elsewhere:
    mounts:
      - {{source: {folder}/not-there, target: /given}}
"""
T = TypeVar("T")


@pytest.fixture(scope="package")
def docker_home(docker_engine: Engine) -> Iterator[Path]:
    """The home of a running stack, with a settings file."""
    home = new_home(docker_engine)
    try:
        done = ran(home, "up")
        assert done.returncode == 0, done.stdout + done.stderr
        yield home
    finally:
        ran(home, "down")
        shutil.rmtree(home, ignore_errors=True)


def new_home(engine: Engine) -> Path:
    """A home with its settings file, of a stack that has not been started."""
    home = Path(tempfile.mkdtemp(prefix="dockered-"))
    (home / "given").mkdir()
    (home / "given" / "note").write_text("from the host\n")
    settings = SETTINGS.format(image=IMAGE, host=engine.host, folder=home / "given")
    (home / "herd.yaml").write_text(settings, encoding="utf-8")
    return home


def ran(home: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run `sandherd` for that stack, with the forwarded variables."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SANDHERD_")}
    command = [str(preloaded_sandherd()), "--home", str(home), "--config", str(home / "herd.yaml"), *words]
    return subprocess.run(
        command, env=environment | {"FORWARDED": FORWARDED}, check=False, capture_output=True, text=True
    )


class Dockered:
    """A herd on an engine."""

    def __init__(self, home: Path, herd: Herd, engine: Engine, docker: Docker) -> None:
        self.home, self.herd, self.engine, self.docker = home, herd, engine, docker

    async def submit(self, script: str, **spec: Any) -> str:
        """Submit a task that runs a script; it has one attempt unless stated."""
        spec = {"retry": RetryPolicy(max_attempts=1), **spec}
        repository = spec.pop("repository", None)
        settings = TaskSpec(text="do it", harness=CommandHarness(argv=["/bin/sh", "-c", script]), **spec)
        return await self.herd.submit(settings, repository=repository)

    async def events(self, task: str, *types: str) -> list[dict[str, Any]]:
        """The events of a task published so far, of these types."""
        await all_stored(self.herd)
        return await self.stored(task, *types)

    async def stored(self, task: str, *types: str) -> list[dict[str, Any]]:
        """The stored events of a task, of these types."""
        stored = [event.envelope async for event in self.herd.events(task=task)]
        return [event for event in stored if not types or event["type"] in types]

    async def event(self, task: str, type: str) -> dict[str, Any]:
        """Wait until the first event of this type is stored."""

        async def stored() -> dict[str, Any] | None:
            return next(iter(await self.stored(task, type)), None)

        return await self.eventually(stored)

    async def ended(self, task: str) -> TaskView:
        """Wait until the task has ended."""

        async def look() -> TaskView | None:
            view = await self.herd.task(task)
            return view if view.ended_at else None

        return await self.eventually(look)

    async def sandbox(self, task: str) -> str:
        """The sandbox of the task."""

        async def look() -> str | None:
            return (await self.herd.task(task)).sandbox

        return await self.eventually(look)

    async def sh(self, sandbox: str, script: str, user: str = "") -> str:
        """Run a script in the task's container."""
        execution = await self._container(sandbox).exec(["/bin/sh", "-c", script], user=user)
        output = b""
        async with execution.start() as stream:
            while (message := await stream.read_out()) is not None:
                output += message.data
        return output.decode().strip()

    async def began(self, task: str) -> str:
        """Wait until the agent of a waiting task has begun; returns its sandbox."""
        sandbox = await self.sandbox(task)

        async def look() -> bool | None:
            try:
                return "yes" in await self.sh(sandbox, f"test -e {WORK}/began && echo yes") or None
            except DockerError:
                return None

        await self.eventually(look)
        return sandbox

    async def let_go(self, sandbox: str) -> None:
        """Let the agent of a waiting task continue."""
        await self.sh(sandbox, f"touch {WORK}/go")

    async def whole(self, *sandboxes: str) -> None:
        """Check that each has ended, with all events stored without a gap, and with nothing left at the engine."""
        for sandbox in sandboxes:
            await self.eventually(partial(self._closed, sandbox))
        await self.eventually(self._nothing_left)

    async def _closed(self, sandbox: str) -> bool | None:
        view, audit = await self.herd.sandbox(sandbox), await self.herd.audit(sandbox)
        if view.state not in SANDBOX_ENDED or audit.unstored or not all(source.closed for source in audit.sources):
            return None
        assert audit.missing == 0, audit
        return True

    async def _nothing_left(self) -> bool | None:
        return not await self.left() or None

    async def left(self) -> list[str]:
        """The containers and volumes of sandboxes at the engine."""
        containers = await self.docker.containers.list(all="true", filters='{"label": ["sandherd.dev/herd"]}')
        volumes = (await self.docker.volumes.list())["Volumes"] or []
        ours = "sandherd-test-"
        return [one["Names"][0] for one in containers] + [
            volume["Name"] for volume in volumes if not volume["Name"].startswith(ours)
        ]

    async def eventually(self, look: Callable[[], Awaitable[T | None]], seconds: float = PATIENCE) -> T:
        """Call `look` until it finds something, and return that."""
        async with asyncio.timeout(seconds):
            while True:
                with suppress(HerdError):  # an unavailable herd is retried
                    if (found := await look()) is not None:
                        return found
                await asyncio.sleep(0.05)  # another process sends no notification

    def _container(self, sandbox: str) -> Any:
        return self.docker.containers.container(f"sandherd-{sandbox}")

    async def remove(self, sandbox: str) -> None:
        """Remove the sandbox's container, as another program may."""
        await self._container(sandbox).delete(force=True, v=True)

    async def remove_all(self, sandbox: str) -> None:
        """Remove the sandbox's container with its volume."""
        await self.remove(sandbox)
        await DockerVolume(self.docker, f"sandherd-{sandbox}").delete()


@asynccontextmanager
async def at(home: Path, engine: Engine) -> AsyncIterator[Dockered]:
    """The herd of a running stack, with clients of the herd and of the engine."""
    docker = Docker(engine.host)
    try:
        async with Herd.connect(Context.resolve(home=home, environ={})) as herd:
            yield Dockered(home, herd, engine, docker)
    finally:
        await docker.close()


@pytest.fixture
async def dockered(docker_home: Path, docker_engine: Engine) -> AsyncIterator[Dockered]:
    """The herd that is shared by all tests which leave it unchanged."""
    async with at(docker_home, docker_engine) as found:
        yield found
