"""Starts a nats-server again that answers and does not store, as soon as what it lacked is there again."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from sandherd.stack.child import Child
from sandherd.stack.nats import NatsServer
from sandherd.stack.resources import measure_shortage
from sandherd.stack.store_health import Action, Look, StoreState, next_state
from sandherd.stack.store_probe import StoreProbe
from sandherd.telemetry import logs

EVERY: Final = 2.0
_log: Final = logs.get("store")


async def _never_silent() -> bool:
    """A server whose file descriptors can be counted needs no further check."""
    return False


@dataclass(frozen=True, kw_only=True)
class Guarded:
    """One nats-server: its name among the others, where it stores, its process, and how it is ended.

    Whoever holds its process starts it again.
    """

    part: str
    server: str
    data: Path
    pid: Callable[[], int | None]
    end: Callable[[], Awaitable[None]]
    silent: Callable[[], Awaitable[bool]] = _never_silent
    """Whether a new connection receives nothing, where the process can't be measured."""


def guarded(servers: Iterable[NatsServer]) -> list[Guarded]:
    """The servers of a broker on this machine."""
    return [
        Guarded(
            part=server.name,
            server=server.server_name,
            data=server.directory,
            pid=partial(_pid_of, server.child),
            end=server.stop,
        )
        for server in servers
    ]


def _pid_of(child: Child) -> int | None:
    return child.pid if child.alive else None


@dataclass
class StoreGuard:
    """Watches the nats-servers of one broker. Run `keep()` beside whatever starts them again."""

    servers: Sequence[Guarded]
    alone: bool | None = None
    """Whether the herd has one nats-server; None: if there is one in `servers`."""
    _states: dict[str, StoreState] = field(default_factory=dict)
    _problems: dict[str, str] = field(default_factory=dict)

    @property
    def problems(self) -> dict[str, str]:
        """The servers that do not store, and why, by the name of the part."""
        return dict(self._problems)

    def stores(self, part: str) -> bool:
        """Whether this server stored when it was last looked at."""
        state = self._states.get(part, StoreState())
        return state.stored_at is not None and state.unstored_since is None

    async def keep(self, url: str, watcher: Path, probe: Path) -> None:
        """Look again and again, until cancelled."""
        async with StoreProbe.open(url, watcher, probe) as asked:
            while True:
                await self.look(asked)
                await asyncio.sleep(EVERY)

    async def look(self, asked: StoreProbe) -> None:
        """Look at every server once, and end the ones that are to be started again."""
        stored, health = await asyncio.gather(asked.write(), asked.ask({server.server for server in self.servers}))
        for server in self.servers:
            await self._judge(server, health.get(server.server), stored=stored)

    async def _judge(self, server: Guarded, health: str | None, *, stored: bool) -> None:
        short = measure_shortage(server.part, server.data, server.pid())
        alone = len(self.servers) == 1 if self.alone is None else self.alone
        silent = await server.silent()
        look = Look(health=health, stored=stored, short=short is not None, alone=alone, silent=silent)
        now = asyncio.get_running_loop().time()
        state, action = next_state(self._states.get(server.part, StoreState()), look, now)
        self._states[server.part] = state
        self._note(server.part, action, short[1] if short else health or "no answer")
        if action is Action.RESTART:
            _log.warning("restarting a nats-server that does not store", process=server.part, problem=health)
            await server.end()

    def _note(self, part: str, action: Action, problem: str) -> None:
        """Log what is new, once."""
        if action is Action.NOTHING:
            if self._problems.pop(part, None):
                _log.info("the broker stores again", process=part)
        elif self._problems.get(part) != problem:
            if part not in self._problems:
                _log.error("the broker does not store", process=part, problem=problem)
            self._problems[part] = problem
