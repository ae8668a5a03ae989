"""Starts and stops a whole stack: broker and database, then the services."""

import asyncio
import os
import socket
from collections.abc import Callable, Coroutine, Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self
from urllib.parse import urlsplit

from sandherd.bus.auth.permissions import SERVICES
from sandherd.concurrency import cancel_and_wait
from sandherd.contracts.subjects import Principal
from sandherd.settings import CONFIG_VARIABLE, load
from sandherd.stack.broker import Broker
from sandherd.stack.child_process import ChildFailedError
from sandherd.stack.cluster import run_all
from sandherd.stack.home import STOP_SECONDS, Home, ProcessRecord, read_context, record_of, write_context
from sandherd.stack.postgres import PostgresServer
from sandherd.stack.process_monitor import ProcessMonitor, StackPart
from sandherd.stack.readiness import read_readiness
from sandherd.stack.sandbox_shutdown import end_sandboxes, ending_seconds
from sandherd.stack.service_processes import ServiceContext, ServiceProcess, check_runtimes
from sandherd.stack.start_failure import cause_in
from sandherd.stack.store_guard import StoreGuard, guarded_servers

DATABASE: Final = "sandherd"
_SPAWNER: Final = Principal.SPAWNER.value
_POLL_SECONDS: Final = 0.03
_MAX_STARTS: Final = 3
"""If a part has ended this often before everything is ready, the start has failed."""
_NO_CHANGE: Final = lambda: None  # noqa: E731  # does nothing


class Stack:
    """The stack of one home. Use it as an async context manager, or call `start` and `stop`.

    `changed` is called whenever a process was started. `linked` processes end with the process that has this object.
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
        """`servers` is the number of nats-servers, by default that of the existing herd, or one. Raises `SizeError`."""
        self.home = Home(home.resolve())
        self.broker = Broker(self.home.path, ports=_last_ports(self.home), linked=linked, size=servers)
        self.postgres = PostgresServer(
            self.home.path / "postgres", log=self.home.logs / "postgres.log", durable=durable, linked=linked
        )
        self.services: dict[str, ServiceProcess] = {}
        self.changed: Callable[[], None] = _NO_CHANGE
        self._linked = linked
        self._outer = dict(os.environ if outer is None else outer)
        self._monitors: dict[str, ProcessMonitor] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self.guard = StoreGuard([])
        self._client_files: list[Path] = []

    @property
    def database_url(self) -> str:
        """The URL of the history's database."""
        return self.postgres.url(DATABASE)

    def initialise(self) -> None:
        """Create the home, and missing keys, credentials and configurations in it."""
        self.home.make()
        self.broker.initialise()
        self.guard = StoreGuard(guarded_servers(self.broker.servers))

    async def start(self, seconds: float = 90) -> None:
        """Start everything and wait until every service is ready. Raises `ChildFailedError`, which names unready parts.

        Raises `ContractError` for an invalid setting, and for a runtime that is not installed.
        """
        check_runtimes(load(environ=self._outer).settings)
        await self.start_stores()
        for service in SERVICES:
            process = ServiceProcess(service, self._context(), self._outer, linked=self._linked)
            self.services[service.value] = process
            await self._start_part(service.value, process)
        self._tasks = [asyncio.create_task(monitor.run(), name=name) for name, monitor in self._monitors.items()]
        self._tasks.append(asyncio.create_task(self.guard.run(*self.broker.probed), name="store guard"))
        await self._wait_ready(seconds)
        self.write_context()
        self._client_files = [*self.broker.write_credentials(), self.home.context]

    async def start_stores(self) -> None:
        """Start broker and database only. Raises `ChildFailedError`."""
        self.initialise()
        await asyncio.gather(self._start_broker(), self._start_database())

    async def run_for(self, seconds: float) -> None:
        """Wait for `seconds` while the stack runs. Raises the error of a monitoring task that has failed meanwhile."""
        done, _ = await asyncio.wait(self._tasks, timeout=seconds, return_when=asyncio.FIRST_EXCEPTION)
        for task in done:
            task.result()

    @property
    def stop_seconds(self) -> float:
        """The maximum time of a graceful stop, in seconds."""
        return STOP_SECONDS + ending_seconds(self._outer)

    async def stop(self, *, sandboxes: bool = True) -> bool:
        """End everything: the spawner, its sandboxes, the other services, then the database and the broker.

        With `sandboxes=False` the sandboxes keep running, and the next stack of this home finds them. Returns whether
        all sandboxes that had to be ended have ended.
        """
        await cancel_and_wait(self._tasks)
        self._tasks = []
        await self._stop_parts(self._monitors.keys() & {_SPAWNER})
        all_ended = await end_sandboxes(self.home, self._outer) if sandboxes else True
        await self._stop_parts(self._monitors.keys() & self.services.keys())
        await self._stop_parts(self._monitors.keys())
        return all_ended

    def processes(self) -> dict[str, ProcessRecord]:
        """The records of the parts that run or are to be restarted, in the order in which they were started."""
        return {
            name: record_of(
                monitor.part.child.pid, restarts=monitor.restarts, http=self._http(name), problem=monitor.problem
            )
            for name, monitor in self._monitors.items()
            if monitor.part.child.alive or self._tasks
        }

    async def unready(self) -> dict[str, str]:
        """The services that are not ready, with the text of their `/readyz`."""
        results = await asyncio.gather(*(read_readiness(service.http) for service in self.services.values()))
        return {name: detail for name, (ready, detail) in zip(self.services, results, strict=True) if not ready}

    def write_context(self) -> None:
        """Write the context for clients: addresses and paths of credentials."""
        creds = {path.stem: str(path) for path in sorted((self.home.path / "creds").glob("*.creds"))}
        context = {
            "nats_url": self.broker.url,
            "database_url": self.database_url,
            "creds": creds,
            "services": {name: {"http": service.http} for name, service in self.services.items()},
        }
        config = self._outer.get(CONFIG_VARIABLE)
        write_context(self.home, context | ({"config": str(Path(config).absolute())} if config else {}))

    def repair_files(self) -> list[str]:
        """Restore deleted files that clients need: credentials and the context. Returns the names of the deleted files.

        Raises `OSError` on a full disk.
        """
        missing = [path.name for path in self._client_files if not path.exists()]
        if missing or not read_context(self.home):
            self._client_files = [*self.broker.write_credentials(), self.home.context]
            self.write_context()
        return missing

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException:  # also a cancellation: it is raised again, but leaves no process behind
            await self.stop(sandboxes=False)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def _stop_parts(self, names: Iterable[str]) -> None:
        parts = [self._monitors[name].part for name in names]
        await asyncio.gather(*(part.stop() for part in parts if part.child.alive))

    async def _start_broker(self) -> None:
        if self.broker.size == 1:
            await self._start_part("nats", self.broker)
            return
        # Each server is monitored separately: if one ends, it is restarted while the others continue.
        await run_all([self._start_part(server.name, server) for server in self.broker.servers])
        await self.broker.prepare()

    async def _start_database(self) -> None:
        await self._start_part("postgres", self.postgres)
        await self.postgres.create_database(DATABASE)

    def _start_part(self, name: str, part: StackPart) -> Coroutine[Any, Any, None]:
        """Register the part for monitoring. The returned coroutine starts it."""
        self._monitors[name] = ProcessMonitor(name, part)
        part.child.on_start = self._on_started
        return part.start()

    def _on_started(self) -> None:
        self.changed()

    async def _wait_ready(self, seconds: float) -> None:
        deadline = asyncio.get_running_loop().time() + seconds
        while unready := await self.unready():
            if asyncio.get_running_loop().time() > deadline:
                raise ChildFailedError(f"not ready after {seconds:g} s:\n{self._problems_text(unready)}")
            if failed_parts := [
                name for name, monitor in self._monitors.items() if monitor.restarts >= _MAX_STARTS - 1
            ]:
                problems = dict.fromkeys(failed_parts, f"ended {_MAX_STARTS} times")
                raise ChildFailedError(f"can't start:\n{self._problems_text(problems)}")
            await asyncio.sleep(_POLL_SECONDS)

    def _problems_text(self, problems: Mapping[str, str]) -> str:
        return "\n".join(
            f"{name}: {detail}\n{cause_in(self._monitors[name].part.child.last_lines(5))}"
            for name, detail in problems.items()
        )

    def _http(self, name: str) -> str | None:
        return self.services[name].http if name in self.services else None

    def _context(self) -> ServiceContext:
        return ServiceContext(
            home=self.home.path,
            nats_url=self.broker.url,
            database_url=self.database_url,
            credentials={service.value: self.broker.credentials(service) for service in SERVICES},
            identity=self.broker.spawner_identity,
        )


def _last_ports(home: Home) -> list[int]:
    """The broker's ports of the last run, so that clients' addresses remain valid; 0 for a port that is in use."""
    addresses = str(read_context(home).get("nats_url", "")).split(",")
    return [_port_if_free(urlsplit(address).port or 0) for address in addresses]


def _port_if_free(port: int) -> int:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return 0
    return port
