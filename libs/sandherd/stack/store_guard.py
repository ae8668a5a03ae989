"""Restarts a nats-server that responds but does not store messages, once the resource that it lacked is available."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from sandherd.stack.child_process import ChildProcess
from sandherd.stack.nats import NatsServer
from sandherd.stack.resource_shortages import measure_shortage
from sandherd.stack.store_health import StoreAction, StoreCheck, StoreState, next_state
from sandherd.stack.store_probe import StoreProbe
from sandherd.telemetry import logs

CHECK_SECONDS: Final = 2.0
"""The interval between two checks, in seconds."""
_log: Final = logs.get("store_guard")


async def _never_silent() -> bool:
    """The default of `GuardedServer.silent`: a server whose file descriptors can be counted needs no further check."""
    return False


@dataclass(frozen=True, kw_only=True)
class GuardedServer:
    """One nats-server: the name of its part, its own name, its data directory, its pid, and a function that ends it.

    The owner of the process then restarts it.
    """

    part: str
    server: str
    data: Path
    pid: Callable[[], int | None]
    end: Callable[[], Awaitable[None]]
    silent: Callable[[], Awaitable[bool]] = _never_silent
    """Whether a new connection receives nothing. Used for servers whose file descriptors can't be counted."""


def guarded_servers(servers: Iterable[NatsServer]) -> list[GuardedServer]:
    """The servers of a broker on this machine, to be watched by a `StoreGuard`."""
    return [
        GuardedServer(
            part=server.name,
            server=server.server_name,
            data=server.directory,
            pid=partial(_pid_of, server.child),
            end=server.stop,
        )
        for server in servers
    ]


def _pid_of(child: ChildProcess) -> int | None:
    return child.pid if child.alive else None


@dataclass
class StoreGuard:
    """Watches the nats-servers of one broker, and ends those that need a restart."""

    servers: Sequence[GuardedServer]
    alone: bool | None = None
    """Whether the herd has only one nats-server; None means that it has those in `servers`."""
    _states: dict[str, StoreState] = field(default_factory=dict)
    _problems: dict[str, str] = field(default_factory=dict)

    @property
    def problems(self) -> dict[str, str]:
        """The problems of servers that do not store messages, by the name of the part."""
        return dict(self._problems)

    def stores(self, part: str) -> bool:
        """Whether this server stored messages at the last check."""
        state = self._states.get(part, StoreState())
        return state.stored_at is not None and state.unstored_since is None

    async def run(self, url: str, watcher: Path, probe: Path) -> None:
        """Check periodically, until cancelled."""
        async with StoreProbe.open(url, watcher, probe) as store_probe:
            while True:
                await self.check(store_probe)
                await asyncio.sleep(CHECK_SECONDS)

    async def check(self, store_probe: StoreProbe) -> None:
        """Check every server once, and end those that are to be restarted."""
        stored, health = await asyncio.gather(
            store_probe.write(), store_probe.read_health({server.server for server in self.servers})
        )
        for server in self.servers:
            await self._check_server(server, health.get(server.server), stored=stored)

    async def _check_server(self, server: GuardedServer, health: str | None, *, stored: bool) -> None:
        shortage = measure_shortage(server.part, server.data, server.pid())
        alone = len(self.servers) == 1 if self.alone is None else self.alone
        silent = await server.silent()
        check = StoreCheck(health=health, stored=stored, short=shortage is not None, alone=alone, silent=silent)
        now = asyncio.get_running_loop().time()
        state, action = next_state(self._states.get(server.part, StoreState()), check, now)
        self._states[server.part] = state
        self._log_change(server.part, action, shortage[1] if shortage else health or "does not respond")
        if action is StoreAction.RESTART:
            _log.warning("restarting nats-server that does not store messages", process=server.part, problem=health)
            await server.end()

    def _log_change(self, part: str, action: StoreAction, problem: str) -> None:
        """Log each change once."""
        if action is StoreAction.NOTHING:
            if self._problems.pop(part, None):
                _log.info("broker stores messages again", process=part)
        elif self._problems.get(part) != problem:
            if part not in self._problems:
                _log.error("broker does not store messages", process=part, problem=problem)
            self._problems[part] = problem
