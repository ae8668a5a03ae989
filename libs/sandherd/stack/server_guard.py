"""Watches one nats-server of a deployment from a container beside it, and writes its state for the server's own probes.

    python -m sandherd.stack.server_guard --server nats-0 --data /data --state /run/store-guard/state

It can't restart the server itself. The health check of Compose and the liveness probe of Kubernetes, which run in the
server's container, read the state file. An old file is ignored, so a guard that has ended causes no restarts.
"""

import argparse
import asyncio
import os
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from sandherd.bus.auth.setup_permissions import STORE_GUARD, WATCHER_CREDENTIALS
from sandherd.bus.identity.deployment import CREDENTIALS
from sandherd.private_files import write_file
from sandherd.stack.store_guard import CHECK_SECONDS, GuardedServer, StoreGuard
from sandherd.stack.store_probe import StoreProbe, is_silent
from sandherd.telemetry import logs

PART: Final = "nats"
"""The name of the server in the results of `StoreGuard`."""
RESTART_SECONDS: Final = 6.0
"""How long the state `restart` stays in the file, in seconds: a little longer than a probe's interval of 5 s."""
_STATE_FILE_MODE: Final = 0o644
_CREDENTIALS_FOLDER: Final = Path("/run/sandherd")
_DEFAULT_PORT: Final = 4222


class GuardState(StrEnum):
    """The first line of the state file. The second line is the problem, for users."""

    OK = "ok"
    FAILING = "failing"
    """The server does not store messages, and a restart would not help yet; or it is starting."""
    RESTART = "restart"


@dataclass
class ServerGuard:
    """Checks one nats-server, and writes the state file.

    `server` is its `server_name`, `data` a folder on the file system on which it stores. `alone` is whether the herd
    has only one server.
    """

    url: str
    server: str
    data: Path
    state: Path
    alone: bool = True
    _restart_until: float = field(default=0.0, init=False)

    async def run(self, watcher: Path, probe: Path) -> None:
        """Check every two seconds, until cancelled. Nothing is written before the server has accepted a connection."""
        guard = StoreGuard([self._guarded_server()], alone=self.alone)
        self.state.unlink(missing_ok=True)
        async with StoreProbe.open(self.url, watcher, probe) as store_probe:
            while True:
                await guard.check(store_probe)
                self._write(guard)
                await asyncio.sleep(CHECK_SECONDS)

    def _guarded_server(self) -> GuardedServer:
        url = urlsplit(self.url)
        silent = partial(is_silent, url.hostname or "127.0.0.1", url.port or _DEFAULT_PORT)
        return GuardedServer(
            part=PART,
            server=self.server,
            data=self.data,
            pid=_descriptors_unknown,
            end=self._request_restart,
            silent=silent,
        )

    async def _request_restart(self) -> None:
        self._restart_until = asyncio.get_running_loop().time() + RESTART_SECONDS

    def _write(self, guard: StoreGuard) -> None:
        guard_state = self._guard_state(stores=guard.stores(PART))
        write_file(self.state, f"{guard_state}\n{guard.problems.get(PART, '')}\n", _STATE_FILE_MODE)

    def _guard_state(self, *, stores: bool) -> GuardState:
        if stores:
            self._restart_until = 0.0
            return GuardState.OK
        return GuardState.RESTART if asyncio.get_running_loop().time() < self._restart_until else GuardState.FAILING


def _descriptors_unknown() -> None:
    """The process is in another container, so its descriptors can't be counted."""


def main() -> None:
    """Run until ended by a signal."""
    parser = argparse.ArgumentParser(prog="server_guard", description="Checks that one nats-server stores messages.")
    parser.add_argument("--url", default=os.environ.get("NATS_URL", f"nats://127.0.0.1:{_DEFAULT_PORT}"))
    parser.add_argument("--server", default="sandherd", help="server_name of the nats-server")
    parser.add_argument(
        "--data", type=Path, default=Path("/data"), help="a folder on the file system that the nats-server stores on"
    )
    parser.add_argument("--state", type=Path, default=Path("/run/store-guard/state"), help="the state file to write")
    parser.add_argument("--credentials", type=Path, default=_CREDENTIALS_FOLDER, help="the folder creds/store-guard")
    parser.add_argument("--cluster", action="store_true", help="the herd has several nats-servers")
    options = parser.parse_args()
    logs.configure(STORE_GUARD, os.environ.get("SANDHERD_LOG_LEVEL", "info"))
    guard = ServerGuard(options.url, options.server, options.data, options.state, alone=not options.cluster)
    asyncio.run(guard.run(options.credentials / WATCHER_CREDENTIALS, options.credentials / CREDENTIALS))


if __name__ == "__main__":
    main()
