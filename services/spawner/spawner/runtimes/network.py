"""The network of sandboxes of the process runtime: its policy, and the files between a run and its forwarder.

The forwarder itself is a program of its own, `sandherd_network.forwarder`: the shim starts it before the sandbox.
"""

import asyncio
import os
import socket
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
from spawner.runtimes.layout import Place
from spawner.runtimes.run_files import Run

FORWARDER: Final = Path(next(iter(find_spec("sandherd_network").submodule_search_locations or [])), "forwarder.py")  # type: ignore[union-attr]  # our own
GATE: Final = 4
"""The descriptor at which bubblewrap waits until the network is there."""
_RESOLV_CONF: Final = "nameserver 127.0.0.1\noptions edns0\n"
_PORTS: Final = {"nats": 4222, "tls": 4222, "ws": 80, "wss": 443, "http": 80, "https": 443}
_SECONDS: Final = 10.0
_LOOK_AGAIN: Final = 0.02
_OWN: Final = 0o600
_READABLE: Final = 0o644


@dataclass(frozen=True)
class Networks:
    """What the herd's settings say of the network of each profile's sandboxes."""

    mode: NetworkMode = "internet"
    allow: frozenset[str] = frozenset()
    endpoints: frozenset[str] = frozenset()
    deny: frozenset[str] = frozenset()
    services: tuple[str, ...] = ()
    """URLs that every sandbox reaches: the broker's, and the telemetry collector's for sandboxes."""
    profiles: Mapping[str, SandboxNetwork] = field(default_factory=dict)

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """As these settings say."""
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
        """What a sandbox of this profile may reach; `services` are further URLs."""
        own = self.profiles.get(profile or "", SandboxNetwork())
        allow = self.allow if own.allow is None else own.allow
        declared = self.endpoints if own.endpoints is None else own.endpoints
        return NetworkPolicy(
            mode=own.mode or self.mode,
            endpoints=(*_of_urls((*self.services, *services)), *_parsed(declared)),
            allow=_parsed(one for one in allow if "/" not in one),
            networks=tuple(sorted(one for one in allow if "/" in one)),
            deny=tuple(sorted(self.deny)),
        )

    @property
    def modes(self) -> frozenset[NetworkMode]:
        """All that sandboxes may have."""
        return frozenset({self.mode, *(one.mode for one in self.profiles.values() if one.mode)})


def _parsed(texts: Iterable[str]) -> tuple[Endpoint, ...]:
    return tuple(Endpoint(*split_destination(text)) for text in sorted(texts))


def _of_urls(urls: Iterable[str]) -> tuple[Endpoint, ...]:
    """Where these lead, in their order; several are separated by commas."""
    found = [_of_url(url.strip()) for several in urls for url in several.split(",") if url.strip()]
    return tuple(dict.fromkeys(one for one in found if one))


def _of_url(url: str) -> Endpoint | None:
    parts = urlsplit(url if "://" in url else f"nats://{url}")
    if not parts.hostname:
        return None
    port = parts.port or _PORTS.get(parts.scheme)
    return Endpoint(split_destination(f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname)[0], port)


def prepare(place: Place, run: Run, policy: NetworkPolicy) -> None:
    """Put what the forwarder and the sandbox are to find where they find it. Raises `OSError`."""
    run.network.write_text(policy.to_json())
    with suppress(FileExistsError):
        os.mkfifo(run.gate, _OWN)
    write_resolv_conf(place)


def write_resolv_conf(place: Place) -> None:
    """The sandbox's name server is its forwarder. Raises `OSError`."""
    place.resolv_conf.write_text(_RESOLV_CONF)
    place.resolv_conf.chmod(_READABLE)


async def published(place: Place, port: int) -> int:
    """The port of this host's loopback that leads to a port in the sandbox: the same, where they share a network.

    Raises `RuntimeFailedError`.
    """
    runs = place.runs()
    return await _publish(runs[-1], port) if runs and runs[-1].gate.exists() else port


async def _publish(run: Run, port: int) -> int:
    deadline = asyncio.get_running_loop().time() + _SECONDS
    while True:
        try:
            return await asyncio.to_thread(_ask, run, port)
        except (OSError, ValueError) as error:
            starting = isinstance(error, FileNotFoundError | ConnectionError)  # for the first time, or once more
            if not starting or asyncio.get_running_loop().time() > deadline:
                told = f"the sandbox's network forwarder does not answer: {error}"
                raise RuntimeFailedError(RuntimeFault.UNAVAILABLE, told) from error
        await asyncio.sleep(_LOOK_AGAIN)


def _ask(run: Run, port: int) -> int:
    folder = os.open(run.folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as control:
            control.settimeout(_SECONDS)
            control.connect(f"/proc/self/fd/{folder}/network.sock")  # a socket's path may have 107 characters
            control.send(str(port).encode())
            return int(control.recv(64))
    finally:
        os.close(folder)
