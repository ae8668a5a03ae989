"""The network of the process runtime's sandboxes: its policy, and the files that a run shares with its forwarder.

The forwarder is a separate program, `sandherd_network.forwarder`, which the shim starts before the sandbox.
"""

import asyncio
import os
import socket
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Final, Self
from urllib.parse import urlsplit

from sandherd_network.policy import Endpoint, NetworkPolicy

from sandherd.contracts.network import NetworkMode, SandboxNetwork, split_destination
from sandherd.settings import Settings
from spawner.runtimes.contract import RuntimeFailedError, RuntimeFault
from spawner.runtimes.layout import SandboxDirectory
from spawner.runtimes.run_files import RunFiles

FORWARDER: Final = Path(next(iter(find_spec("sandherd_network").submodule_search_locations or [])), "forwarder.py")  # type: ignore[union-attr]  # our own
FORWARDER_COMMAND: Final = (sys.executable, "-P", "-m", "sandherd_network.forwarder")
"""The forwarder's command line for a fork server."""
GATE: Final = 4
"""The descriptor on which bubblewrap waits until the network is ready."""
_RESOLV_CONF: Final = "nameserver 127.0.0.1\noptions edns0\n"
_DEFAULT_PORTS: Final = {"nats": 4222, "tls": 4222, "ws": 80, "wss": 443, "http": 80, "https": 443}
"""The default port of each URL scheme."""
_FORWARDER_TIMEOUT_SECONDS: Final = 10.0
"""The timeout for a reply of a forwarder, and for a forwarder to start."""
_POLL_SECONDS: Final = 0.02
_DNS_PORT: Final = 53
_OWNER_ONLY: Final = 0o600
_READABLE: Final = 0o644


@dataclass(frozen=True)
class Networks:
    """The network settings of the herd and of each profile."""

    mode: NetworkMode = "internet"
    allow: frozenset[str] = frozenset()
    endpoints: frozenset[str] = frozenset()
    deny: frozenset[str] = frozenset()
    services: tuple[str, ...] = ()
    """URLs that every sandbox may reach: that of the broker, and that of the telemetry collector for sandboxes."""
    profiles: Mapping[str, SandboxNetwork] = field(default_factory=dict)

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """The network settings from the settings of the herd."""
        collector = settings.sandbox_otlp_endpoint
        return cls(
            mode=settings.sandbox_network,
            allow=settings.sandbox_allow,
            endpoints=settings.sandbox_endpoints,
            deny=settings.sandbox_deny,
            services=(settings.nats_url, *([str(collector)] if collector else [])),
            profiles={name: profile.network for name, profile in settings.profiles.items() if profile.network},
        )

    def policy(self, profile: str | None, *services: str) -> NetworkPolicy:
        """The policy of a sandbox of this profile. `services`: further URLs that the sandbox may reach."""
        profile_network = self.profiles.get(profile or "", SandboxNetwork())
        allow = self.allow if profile_network.allow is None else profile_network.allow
        endpoints = self.endpoints if profile_network.endpoints is None else profile_network.endpoints
        return NetworkPolicy(
            mode=profile_network.mode or self.mode,
            endpoints=(*_endpoints_of_urls((*self.services, *services)), *_parse_endpoints(endpoints)),
            allow=_parse_endpoints(destination for destination in allow if "/" not in destination),
            networks=tuple(sorted(destination for destination in allow if "/" in destination)),
            deny=tuple(sorted(self.deny)),
        )

    @property
    def modes(self) -> frozenset[NetworkMode]:
        """All modes that sandboxes may have."""
        return frozenset({self.mode, *(network.mode for network in self.profiles.values() if network.mode)})


def _parse_endpoints(texts: Iterable[str]) -> tuple[Endpoint, ...]:
    return tuple(Endpoint(*split_destination(text)) for text in sorted(texts))


def _endpoints_of_urls(urls: Iterable[str]) -> tuple[Endpoint, ...]:
    """The endpoints of these URLs, in order, without duplicates. Each text may have several URLs, with commas."""
    endpoints = [_endpoint_of_url(url.strip()) for text in urls for url in text.split(",") if url.strip()]
    return tuple(dict.fromkeys(endpoint for endpoint in endpoints if endpoint))


def _endpoint_of_url(url: str) -> Endpoint | None:
    parts = urlsplit(url if "://" in url else f"nats://{url}")
    if not parts.hostname:
        return None
    port = parts.port or _DEFAULT_PORTS.get(parts.scheme)
    return Endpoint(split_destination(f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname)[0], port)


def prepare(directory: SandboxDirectory, run: RunFiles, policy: NetworkPolicy) -> None:
    """Write the files that the forwarder and the sandbox read. Raises `OSError`."""
    run.network.write_text(policy.to_json())
    with suppress(FileExistsError):
        os.mkfifo(run.gate, _OWNER_ONLY)
    write_resolv_conf(directory)


def write_resolv_conf(directory: SandboxDirectory) -> None:
    """Write the sandbox's resolv.conf, with its forwarder as name server. Raises `OSError`."""
    directory.resolv_conf.write_text(_RESOLV_CONF)
    directory.resolv_conf.chmod(_READABLE)


async def host_port(directory: SandboxDirectory, port: int) -> int:
    """The loopback port of this host that leads to a port in the sandbox. It is the same port if they share a network.

    Otherwise the sandbox's forwarder is requested to publish the port. Raises `RuntimeFailedError`.
    """
    runs = directory.runs()
    return await _publish(runs[-1], port) if runs and runs[-1].gate.exists() else port


def port_refusal(directory: SandboxDirectory, port: int) -> str:
    """Why connections to this port of the sandbox's loopback leave the sandbox; empty if they stay in it."""
    runs = directory.runs()
    if not runs or not runs[-1].gate.exists():
        return "it shares the network of its host (SANDHERD_SANDBOX_NETWORK=host, or no isolation)"
    policy = NetworkPolicy.from_json(runs[-1].network.read_text())
    if port == _DNS_PORT or any(
        _may_be_loopback(endpoint) and endpoint.includes_port(port) for endpoint in policy.endpoints
    ):
        return "the sandbox reaches the broker or an endpoint of its host there"
    return ""


def _may_be_loopback(endpoint: Endpoint) -> bool:
    """Whether the endpoint may be on the host's loopback. A name may have such an address in `/etc/hosts`."""
    return endpoint.address is None or endpoint.address.is_loopback


async def _publish(run: RunFiles, port: int) -> int:
    deadline = asyncio.get_running_loop().time() + _FORWARDER_TIMEOUT_SECONDS
    while True:
        try:
            return await asyncio.to_thread(_request_port, run, port)
        except (OSError, ValueError) as error:
            may_be_starting = isinstance(error, FileNotFoundError | ConnectionError)
            if not may_be_starting or asyncio.get_running_loop().time() > deadline:
                message = f"the sandbox's network forwarder does not respond: {error}"
                raise RuntimeFailedError(RuntimeFault.UNAVAILABLE, message) from error
        await asyncio.sleep(_POLL_SECONDS)


def _request_port(run: RunFiles, port: int) -> int:
    folder = os.open(run.folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as control:
            control.settimeout(_FORWARDER_TIMEOUT_SECONDS)
            control.connect(f"/proc/self/fd/{folder}/network.sock")  # a socket's path has at most 107 characters
            control.send(str(port).encode())
            return int(control.recv(64))
    finally:
        os.close(folder)
