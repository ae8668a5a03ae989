"""The whole stack in one process's care: broker, database and the four services, in that order."""

import asyncio
import os
import socket
from collections.abc import Callable, Coroutine, Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self
from urllib.parse import urlsplit

from sandherd.bus.permissions import SERVICES
from sandherd.contracts.subjects import Principal
from sandherd.settings import CONFIG_VARIABLE, load
from sandherd.stack.broker import Broker
from sandherd.stack.child import ChildFailedError
from sandherd.stack.cluster import each
from sandherd.stack.home import STOP_SECONDS, Home, ProcessRecord, read_context, record_of, write_context
from sandherd.stack.keeping import Keeper, Part
from sandherd.stack.postgres import PostgresServer
from sandherd.stack.programs import Place, ServiceProcess
from sandherd.stack.readiness import ask_ready
from sandherd.stack.sandboxes import end_sandboxes, ending_seconds
from sandherd.stack.store_guard import StoreGuard, guarded

DATABASE: Final = "sandherd"
_SPAWNER: Final = Principal.SPAWNER.value
_POLL: Final = 0.03
_MOST_STARTS: Final = 3
"""A service that ends so often before everything is ready will not start by trying longer."""
_NO_CHANGE: Final = lambda: None  # noqa: E731  # one that does nothing


class Stack:
    """Everything of one home. Use it as an async context manager, or call `start` and `stop`.

    `changed` is called whenever a process was started. `linked` processes die with the one that holds this.
    """

    def __init__(
        self,
        home: Path,
        *,
        linked: bool = True,
        outer: Mapping[str, str] | None = None,
        durable: bool = True,
        servers: int | None = None,
    ) -> None:
        """`servers` is how many nats-servers; without it as many as before, or one. Raises `SizeError`."""
        self.home = Home(home.resolve())
        self.broker = Broker(self.home.path, ports=_last_ports(self.home), linked=linked, size=servers)
        self.postgres = PostgresServer(
            self.home.path / "postgres", log=self.home.logs / "postgres.log", durable=durable, linked=linked
        )
        self.services: dict[str, ServiceProcess] = {}
        self.changed: Callable[[], None] = _NO_CHANGE
        self._linked = linked
        self._outer = dict(os.environ if outer is None else outer)
        self._keepers: dict[str, Keeper] = {}
        self._keeping: list[asyncio.Task[None]] = []
        self.guard = StoreGuard([])

    @property
    def database_url(self) -> str:
        """Where the history is."""
        return self.postgres.url(DATABASE)

    def initialise(self) -> None:
        """Make the home, and in it what is not there yet: keys, credentials, configuration."""
        self.home.make()
        self.broker.initialise()
        self.guard = StoreGuard(guarded(self.broker.servers))

    async def start(self, seconds: float = 90) -> None:
        """Start everything and wait until every service is ready. Raises `ChildFailedError` naming what is not.

        Raises `ContractError` for a setting that every service would refuse.
        """
        load(environ=self._outer)
        self.initialise()
        await asyncio.gather(self._start_broker(), self._start_database())
        for service in SERVICES:
            process = ServiceProcess(service, self._place(), self._outer, linked=self._linked)
            self.services[service.value] = process
            await self._start_part(service.value, process)
        self._keeping = [asyncio.create_task(keeper.keep(), name=name) for name, keeper in self._keepers.items()]
        self._keeping.append(asyncio.create_task(self.guard.keep(*self.broker.probed), name="store guard"))
        await self._wait_ready(seconds)
        self.write_context()

    async def hold(self, seconds: float) -> None:
        """Let it run for so long. Raises what ended the care for one of its parts, which nothing should."""
        over, _ = await asyncio.wait(self._keeping, timeout=seconds, return_when=asyncio.FIRST_EXCEPTION)
        for task in over:
            task.result()

    @property
    def stop_seconds(self) -> float:
        """How long an ordered end may take."""
        return STOP_SECONDS + ending_seconds(self._outer)

    async def stop(self, *, sandboxes: bool = True) -> bool:
        """End everything: the spawner, its sandboxes, the other services, then the database and the broker.

        Without `sandboxes` they live on, for the next stack of this home to find them. Returns whether none of those
        that were to be ended is left.
        """
        for task in self._keeping:
            task.cancel()
        await asyncio.gather(*self._keeping, return_exceptions=True)
        self._keeping = []
        await self._stop_parts(self._keepers.keys() & {_SPAWNER})
        gone = await end_sandboxes(self.home, self._outer) if sandboxes else True
        await self._stop_parts(self._keepers.keys() & self.services.keys())
        await self._stop_parts(self._keepers.keys())
        return gone

    def processes(self) -> dict[str, ProcessRecord]:
        """What runs or is to run, in the order in which it was started.

        A part that has just ended and is about to be started again is among them: without it the rest would be all.
        """
        return {
            name: record_of(
                keeper.part.child.pid, restarts=keeper.restarts, http=self._http(name), problem=keeper.problem
            )
            for name, keeper in self._keepers.items()
            if keeper.part.child.alive or self._keeping
        }

    async def unready(self) -> dict[str, str]:
        """The services that are not ready, and what they say."""
        answers = await asyncio.gather(*(ask_ready(service.http) for service in self.services.values()))
        return {name: says for name, (ready, says) in zip(self.services, answers, strict=True) if not ready}

    def write_context(self) -> None:
        """Tell clients where everything is."""
        creds = {path.stem: str(path) for path in sorted((self.home.path / "creds").glob("*.creds"))}
        context = {
            "nats_url": self.broker.url,
            "database_url": self.database_url,
            "creds": creds,
            "services": {name: {"http": service.http} for name, service in self.services.items()},
        }
        config = self._outer.get(CONFIG_VARIABLE)
        write_context(self.home, context | ({"config": str(Path(config).absolute())} if config else {}))

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException:  # also a cancellation: whatever it was goes on, but leaves no process behind
            await self.stop(sandboxes=False)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def _stop_parts(self, names: Iterable[str]) -> None:
        parts = [self._keepers[name].part for name in names]
        await asyncio.gather(*(part.stop() for part in parts if part.child.alive))

    async def _start_broker(self) -> None:
        if self.broker.size == 1:
            await self._start_part("nats", self.broker)
            return
        # Each is kept alive for itself: one that ends is started again among the others, which go on.
        await each([self._start_part(server.name, server) for server in self.broker.servers])
        await self.broker.prepare()

    async def _start_database(self) -> None:
        await self._start_part("postgres", self.postgres)
        await self.postgres.create_database(DATABASE)

    def _start_part(self, name: str, part: Part) -> Coroutine[Any, Any, None]:
        """Kept from now on, and started when it is waited for."""
        self._keepers[name] = Keeper(name, part)
        part.child.started = self._on_started
        return part.start()

    def _on_started(self) -> None:
        self.changed()

    async def _wait_ready(self, seconds: float) -> None:
        deadline = asyncio.get_running_loop().time() + seconds
        while waiting := await self.unready():
            if asyncio.get_running_loop().time() > deadline:
                raise ChildFailedError(f"not ready after {seconds:g} s:\n{self._say(waiting)}")
            if hopeless := [name for name, keeper in self._keepers.items() if keeper.restarts >= _MOST_STARTS - 1]:
                lost = dict.fromkeys(hopeless, f"ended {_MOST_STARTS} times")
                raise ChildFailedError(f"can't start:\n{self._say(lost)}")
            await asyncio.sleep(_POLL)

    def _say(self, waiting: Mapping[str, str]) -> str:
        return "\n".join(
            f"{name}: {says}\n{self._keepers[name].part.child.last_words(5)}" for name, says in waiting.items()
        )

    def _http(self, name: str) -> str | None:
        return self.services[name].http if name in self.services else None

    def _place(self) -> Place:
        return Place(
            home=self.home.path,
            nats_url=self.broker.url,
            database_url=self.database_url,
            credentials={service.value: self.broker.credentials(service) for service in SERVICES},
            identity=self.broker.spawner_identity,
        )


def _last_ports(home: Home) -> list[int]:
    """The broker's ports of the last time: what clients remember goes on being right. One that is taken is 0."""
    addresses = str(read_context(home).get("nats_url", "")).split(",")
    return [_if_free(urlsplit(address).port or 0) for address in addresses]


def _if_free(port: int) -> int:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return 0
    return port
