"""Which ports of a sandbox's loopback are forwarded: those that can't be its host's."""

from pathlib import Path
from typing import Any

import pytest
from sandherd_network.policy import Endpoint, NetworkPolicy

from spawner.access.ports import port_refusal as refusal_of_runtime
from spawner.runtimes import network
from spawner.runtimes.contract import Capabilities, Isolation
from spawner.runtimes.docker.containers import ContainerOptions
from spawner.runtimes.docker.provider import DockerProvider
from spawner.runtimes.layout import SandboxDirectory

ENDPOINTS = (
    Endpoint("127.0.0.1", 4222),
    Endpoint("::1", 11434),
    Endpoint("db.internal", 5432),
    Endpoint("203.0.113.7", 8080),
)


@pytest.fixture
def place(tmp_path: Path) -> SandboxDirectory:
    """A sandbox with a network of its own, and these endpoints."""
    found = SandboxDirectory(tmp_path / "sbx-1")
    run = found.folder / "run" / "0"
    run.mkdir(parents=True)
    (run / "gate").touch()
    (run / "network.json").write_text(NetworkPolicy(mode="internet", endpoints=ENDPOINTS).to_json())
    return found


@pytest.mark.parametrize(
    ("port", "own"), [(8000, True), (8080, True), (22, True), (53, False), (4222, False), (11434, False), (5432, False)]
)
def test_ports_that_lead_to_the_host_are_refused(place: SandboxDirectory, port: int, own: bool) -> None:
    """DNS, and endpoints at the host's loopback or at a name; an endpoint elsewhere is not redirected from loopback."""
    assert (network.port_refusal(place, port) == "") == own


def test_every_port_is_refused_where_the_network_is_shared(place: SandboxDirectory) -> None:
    """Every port is refused without a network namespace, and before the first run."""
    (place.folder / "run" / "0" / "gate").unlink()
    assert "SANDHERD_SANDBOX_NETWORK" in network.port_refusal(place, 8000)


@pytest.mark.parametrize(("mode", "own"), [("bridge", True), ("host", False)])
async def test_containers_on_the_network_of_their_host_are_refused(mode: str, own: bool) -> None:
    """Containers on other networks have their own loopback interface."""
    docker: Any = None  # nothing is asked of it
    engine = DockerProvider(docker, ContainerOptions(image="box", network=mode))
    assert (engine.port_refusal("sbx-1", 80) == "") == own


def test_runtime_without_isolation_is_refused() -> None:
    """Every port of a runtime without isolation is refused, also if it has no method for that."""

    class Bare:
        name = "bare"
        capabilities = Capabilities(isolation=Isolation.NONE, memory="none", processes="none")

    bare: Any = Bare()
    assert "does not separate" in refusal_of_runtime(bare, "sbx-1", 80)
