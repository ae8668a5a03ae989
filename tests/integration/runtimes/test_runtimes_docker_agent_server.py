"""The real OpenHands agent server in a container of a real engine: its toolchain is mounted there."""

from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiodocker import Docker

from sandherd.contracts.agent_server import AgentServer
from sandherd.contracts.commands import TerminateSandbox
from sandherd.contracts.requests import AgentServerView, GetAgentServer, Mount, Profile
from sandherd.contracts.specs import SandboxLimits
from sandherd.contracts.subjects import Principal
from sandherd.settings import Settings
from sandherd.stack.broker import Broker
from spawner.main import compose
from spawner.runtimes.boxes.runtime import BoxRuntime
from spawner.runtimes.contract import Runtime
from spawner.runtimes.docker.containers import PREFIX, ContainerOptions
from spawner.runtimes.docker.provider import DockerProvider
from tests.drivers.toolchains import interpreter
from tests.engines.docker import IMAGE
from tests.engines.docker import Engine as RealEngine
from tests.integration.runtimes.conftest import WORK
from tests.integration.spawner.conftest import ProjectUser
from tests.patience import PATIENCE
from tests.polling import eventually

pytestmark = [pytest.mark.agents, pytest.mark.timeout(900)]
SERVING = "sandherd-test-serving:1"
PYTHON = "/interpreter"
TOOLCHAINS = "/toolchains"
SECONDS = 150
CONFIGURED = f"echo {PYTHON}/lib > /etc/ld.so.conf.d/interpreter.conf && ldconfig"
"""A Python with a shared library must find it where it is mounted."""


def mounts(folder: Path) -> list[Mount]:
    """The mounts of the toolchain and of the Python for which it was made, each in its own place."""
    python = interpreter("openhands")
    configured = dict(
        line.split(" = ", 1) for line in (python.parents[1] / "pyvenv.cfg").read_text().splitlines() if " = " in line
    )
    (packages,) = python.parents[1].glob("lib/python3*/site-packages")
    base = Path(configured["home"]).parent
    made = folder / "toolchains" / "openhands"
    (made / packages.relative_to(python.parents[1])).mkdir(parents=True)
    (made / "bin").mkdir()
    (made / "bin" / "python").symlink_to(f"{PYTHON}/bin/{packages.parent.name}")
    (made / "pyvenv.cfg").write_text(f"home = {PYTHON}/bin\nversion = {configured['version_info']}\n")
    inside = f"{TOOLCHAINS}/openhands/{packages.relative_to(python.parents[1])}"
    pairs = {base / "bin": f"{PYTHON}/bin", base / "lib": f"{PYTHON}/lib", made.parent: TOOLCHAINS, packages: inside}
    return [Mount(source=str(source), target=target) for source, target in pairs.items()]


@pytest.fixture
async def docker(docker_engine: RealEngine) -> AsyncIterator[Docker]:
    client = Docker(docker_engine.host)
    yield client
    await client.close()


async def image(docker: Docker, mounted: list[Mount]) -> str:
    """The base image with the folder of its toolchains."""
    binds = [f"{one.source}:{one.target}:ro" for one in mounted[:2]]
    options: dict[str, Any] = {"Image": IMAGE, "Cmd": ["/bin/sh", "-c", CONFIGURED], "HostConfig": {"Binds": binds}}
    options["HostConfig"]["NetworkMode"] = "none"
    container = await docker.containers.create(options)
    try:
        await container.start()
        assert (await container.wait(timeout=PATIENCE))["StatusCode"] == 0
        name, _, version = SERVING.partition(":")
        await container.commit(repository=name, tag=version, changes=f"ENV SANDHERD_TOOLCHAINS={TOOLCHAINS}")
    finally:
        await container.delete(force=True)
    return SERVING


class Served:
    """A sandbox with an agent server, and a user who requests it."""

    def __init__(self, person: ProjectUser, sandbox: str) -> None:
        self.person, self.sandbox = person, sandbox

    async def view(self) -> AgentServerView:
        """The address of the server, with its key."""
        requested = GetAgentServer(sandbox=self.sandbox, with_key=True)
        found: AgentServerView = await self.person.bus.ask(requested, "p1", timeout=PATIENCE)
        return found

    async def event_data(self, action: str) -> dict[str, Any]:
        """Wait for the data of the event; a failure ends the wait."""

        def find() -> dict[str, Any] | None:
            found = {event["type"]: event["data"] for event in self.person.events}
            assert "agent.server_failed" not in found, found["agent.server_failed"]
            return found.get(f"agent.{action}")

        options: dict[str, Any] = await eventually(find, seconds=SECONDS)
        return options


@pytest.fixture
async def served(docker: Docker, docker_engine: RealEngine, herd: Broker, tmp_path: Path) -> AsyncIterator[Served]:
    mounted = mounts(tmp_path)
    kind = ContainerOptions(await image(docker, mounted), network="host")

    async def opened(_settings: Settings) -> Sequence[Runtime]:
        return [BoxRuntime(DockerProvider(Docker(docker_engine.host), kind), "serving")]

    settings = herd.settings(
        *(Principal.SPAWNER,), home=tmp_path, runtime="docker", check_interval=0.2, stop_grace=10,
        sandbox_mounts=frozenset(one.source for one in mounted), profiles={"served": Profile(mounts=tuple(mounted))},
    )  # fmt: skip
    async with compose(settings, runtimes=opened).running(), herd.bus(Principal.CLIENT, project="p1") as bus:
        person = ProjectUser(bus, eventually, tmp_path)
        await person.listen()
        wanted = AgentServer(restarts=0, start_seconds=SECONDS)
        sandbox = await person.create(limits=SandboxLimits(memory_mb=2048), agent_server=wanted, profile="served")
        yield Served(person, sandbox)


@pytest.mark.long
async def test_agent_server_in_a_container_requires_its_key(served: Served, docker: Docker) -> None:
    """At the runtime's address health is public, all else needs the key; commands run in its sandbox."""
    await served.event_data("server_ready")
    view = await served.view()
    assert (view.state, view.url) == ("ready", f"http://127.0.0.1:{(await served.event_data('server_ready'))['port']}")
    key = {"X-Session-API-Key": str(view.key)}
    async with aiohttp.ClientSession(base_url=view.url) as http:
        assert (await http.get("/health")).status == 200
        assert (await http.get("/api/conversations/count")).status == 401
        assert await (await http.get("/api/conversations/count", headers=key)).json() == 0
        requested = {"command": "pwd; id -u"}
        ran = await (await http.post("/api/bash/execute_bash_command", json=requested, headers=key)).json()
        assert (ran["exit_code"], ran["stdout"]) == (0, f"{WORK}\n1000\n")
        shown = await docker.containers.container(PREFIX + served.sandbox).show()
        assert str(view.key) not in str(shown)
        await served.person.command(TerminateSandbox(sandbox=served.sandbox, reason="seen enough"), served.sandbox)
        await served.event_data("server_stopped")
        await served.person.receives(served.sandbox, "sandbox.terminated")
        with pytest.raises(aiohttp.ClientConnectionError):
            await http.get("/health")

    async def none_left() -> bool:
        return await docker.containers.list(all="true", filters='{"label": ["sandherd.dev/herd=serving"]}') == []

    await eventually(none_left)  # ended sandboxes are removed a moment later
    served.person.check_sequences()
