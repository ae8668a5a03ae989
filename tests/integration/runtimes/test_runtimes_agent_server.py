"""An agent server beside the worker, in every runtime: how it is found and reached, and what it requires.

The server is a stand-in that starts at once; the real one is run in the process runtime, by the spawner's own tests.
"""

import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import aiohttp
import pytest

from sandherd.bus.connection import Bus
from sandherd.contracts.agent_server import AgentServer
from sandherd.contracts.commands import TerminateSandbox
from sandherd.contracts.requests import AgentServerView, GetAgentServer
from sandherd.contracts.specs import SandboxLimits
from sandherd.contracts.subjects import Principal
from sandherd.settings import Settings
from sandherd.stack.broker import Broker
from sandherd.stack.nats import free_port
from spawner.main import compose
from spawner.runtimes.boxes.provider import Provider
from spawner.runtimes.boxes.runtime import BoxRuntime
from spawner.runtimes.contract import Runtime
from tests.doubles.daytona.double import Double as Daytona
from tests.doubles.daytona.provider import cloud
from tests.doubles.kubernetes.cluster import Cluster
from tests.doubles.kubernetes.provider import opened
from tests.doubles.remote.double import Double as RuntimeApi
from tests.doubles.remote.provider import remote
from tests.doubles.toolchains import laid
from tests.integration.spawner.conftest import ProjectUser
from tests.live_files import contents_below
from tests.patience import PATIENCE
from tests.polling import eventually

pytestmark = [pytest.mark.timeout(900)]
Made = tuple[Callable[[], Awaitable[Provider]], Callable[[], Sequence[int]]]
"""A function that opens the provider, and one that returns the reachable ports of its only box (none: any port)."""


async def _provider(made: Provider) -> Provider:
    return made


@pytest.fixture
def with_daytona(daytona_double: Daytona, tmp_path: Path) -> Made:
    daytona_double.image.toolchains = laid(tmp_path / "toolchains")
    return lambda: _provider(cloud(daytona_double)), list


@pytest.fixture
def with_remote(remote_double: RuntimeApi, tmp_path: Path) -> Made:
    remote_double.image.toolchains = laid(tmp_path / "toolchains")
    return lambda: _provider(remote(remote_double)), lambda: remote_double.of("").machine.work_ports


@pytest.fixture
def with_kubernetes(tmp_path: Path) -> Iterator[Made]:
    ports = (free_port(), free_port())
    with Cluster() as cluster:
        cluster.kubelet.image.toolchains = laid(tmp_path / "toolchains")
        yield opened(cluster, ports=ports), lambda: ports


class Served:
    """A sandbox with an agent server, and a user who requests it."""

    def __init__(self, bus: Bus, person: ProjectUser, sandbox: str) -> None:
        self._bus, self.person, self.sandbox = bus, person, sandbox

    async def ask(self, *, with_key: bool) -> AgentServerView:
        """The published address of the server."""
        requested = GetAgentServer(sandbox=self.sandbox, with_key=with_key)
        found: AgentServerView = await self._bus.ask(requested, "p1", timeout=PATIENCE)
        return found


@pytest.fixture(params=["daytona", "kubernetes", "remote"])
def kind(request: pytest.FixtureRequest) -> str:
    """Each runtime in turn that has its own image."""
    name: str = request.param
    return name


@pytest.fixture
def made(kind: str, request: pytest.FixtureRequest) -> Made:
    found: Made = request.getfixturevalue(f"with_{kind}")
    return found


@pytest.fixture
async def served(kind: str, made: Made, herd: Broker, tmp_path: Path) -> AsyncIterator[Served]:
    """A sandbox whose server is ready."""

    async def runtimes(_settings: Settings) -> Sequence[Runtime]:
        return [BoxRuntime(await made[0](), "serving")]

    settings = herd.settings(Principal.SPAWNER, home=tmp_path / "home", runtime=kind, check_interval=0.2)
    async with compose(settings, runtimes=runtimes).running(), herd.bus(Principal.CLIENT, project="p1") as bus:
        person = ProjectUser(bus, eventually, tmp_path)
        await person.listen()
        sandbox = await person.create(limits=SandboxLimits(memory_mb=1024), agent_server=AgentServer(restarts=0))
        await eventually(lambda: "agent.server_ready" in person.types(sandbox))
        yield Served(bus, person, sandbox)
        await person.command(TerminateSandbox(sandbox=sandbox, reason="seen enough"), sandbox)
        await person.receives(sandbox, "sandbox.terminated")


async def _status(url: str, path: str, headers: Mapping[str, str]) -> int | None:
    """The status of the response; None if the server is not reachable."""
    try:
        async with (
            aiohttp.ClientSession(headers=headers) as http,
            http.post(
                f"{url}{path}", json={"command": "true", "cwd": "/", "timeout": 5}, allow_redirects=False
            ) as lines,
        ):
            return lines.status
    except aiohttp.ClientError:
        return None


@contextmanager
def _everything_logged() -> Iterator[list[str]]:
    lines: list[str] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(f"{record.getMessage()} {vars(record)}")

    keep = Keep()
    logging.getLogger().addHandler(keep)
    try:
        yield lines
    finally:
        logging.getLogger().removeHandler(keep)


@pytest.mark.own_broker
async def test_agent_server_is_reached_wherever_its_sandbox_is(
    kind: str, made: Made, served: Served, herd: Broker, capfd: pytest.CaptureFixture[str]
) -> None:
    """The URL has a reachable port; requests need the key and the proxy's headers.

    A client gets both when it requests the key; they are in no event, log or URL, and in nothing that the broker
    stores.
    """
    with _everything_logged() as logged:
        bare, whole = await served.ask(with_key=False), await served.ask(with_key=True)
        assert (bare.state, bare.key, bare.headers) == ("ready", None, None)
        assert bare.url is not None
        assert (whole.url, bool(whole.headers)) == (bare.url, kind == "daytona")
        port = served.person.event_data(served.sandbox, "agent.server_ready")["port"]
        assert port in (made[1]() or [port])
        await _only_by_what_is_wanted(bare.url, {"X-Session-API-Key": str(whole.key)}, whole.headers or {})
    secrets = [str(whole.key), *(whole.headers or {}).values()]
    texts = [json.dumps(served.person.events), bare.url, repr(whole), *logged, *capfd.readouterr()]
    stored = contents_below(herd.home).values()
    for secret in secrets:
        assert not [text for text in texts if secret in text]
        assert not [content for content in stored if secret.encode() in content]


async def _only_by_what_is_wanted(url: str, key: dict[str, str], shown: dict[str, str]) -> None:
    path = "/api/bash/execute_bash_command"
    assert await _status(url, path, key | shown) == 200
    assert await _status(url, path, shown) == 401
    if shown:
        assert await _status(url, path, key) == 401
