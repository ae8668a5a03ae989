"""The window by which a service is looked into: /metrics, /healthz and /readyz over HTTP."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import uvicorn
from faststream.asgi import AsgiFastStream, AsgiResponse, get
from faststream.nats import NatsBroker
from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector, make_asgi_app

from sandherd.bus.health import REMARK, Health
from sandherd.bus.http_connections import BoundedConnection, ConnectionLimits, ConnectionTable, open_files
from sandherd.private_files import write_file
from sandherd.telemetry.meters import Meters

_LONGEST_HEADER: Final = 16 * 1024
"""The most bytes of a request's line and header together."""


class WindowError(Exception):
    """The HTTP side could not be opened."""


class Window:
    """What a service shows of itself: its metrics, and whether it is well."""

    def __init__(self) -> None:
        self.health = Health()
        self.port = 0
        self.limits = ConnectionLimits()
        self.registry = CollectorRegistry()
        for collector in (ProcessCollector, PlatformCollector, GCCollector):
            collector(registry=self.registry)
        self.meters = Meters(self.registry)
        self.meters.watch("sandherd_ready", lambda: not self.health.problems())

    @asynccontextmanager
    async def open(self, broker: NatsBroker, host: str, port: int, port_file: Path | None) -> AsyncIterator[None]:
        """Serve HTTP meanwhile. A port of 0 takes any free one; the real one is in `port`, and in the file.

        Raises `WindowError` if the port is taken.
        """
        server = _QuietServer(self._config(broker, host, port))
        serving = asyncio.create_task(server.serve(), name="http")
        while not server.started:
            if serving.done():
                raise WindowError(f"no HTTP on {host}:{port}")
            await asyncio.sleep(0.005)
        self.port = server.servers[0].sockets[0].getsockname()[1]
        if port_file is not None:
            write_file(port_file, str(self.port))
        try:
            yield
        finally:
            server.should_exit = True
            await serving

    def _config(self, broker: NatsBroker, host: str, port: int) -> uvicorn.Config:
        loop = asyncio.get_running_loop()
        table = ConnectionTable(self.limits.within(open_files()), loop.time, loop.call_soon, self._count_dropped)
        return uvicorn.Config(
            self._application(broker),
            host=host,
            port=port,
            http=partial(BoundedConnection, table),  # type: ignore[arg-type]  # only called, as a class would be
            ws="none",
            lifespan="off",
            h11_max_incomplete_event_size=_LONGEST_HEADER,
            log_config=None,
            access_log=False,
        )

    def _count_dropped(self, why: str) -> None:
        self.meters.count("sandherd_http_connections_dropped_total", reason=why)

    def _application(self, broker: NatsBroker) -> AsgiFastStream:
        return AsgiFastStream(
            broker,
            asgi_routes=[
                ("/metrics", make_asgi_app(self.registry)),
                ("/healthz", get(self._healthz)),
                ("/readyz", get(self._readyz)),
            ],
        )

    async def _healthz(self, _scope: Any) -> AsgiResponse:
        """Alive: the event loop turns."""
        return AsgiResponse(b"ok\n", 200)

    async def _readyz(self, _scope: Any) -> AsgiResponse:
        """Ready: every part that the work rests on is well; the body names each, and what is worth a look."""
        parts = self.health.parts()
        ready = all(state == "ok" for state in parts.values())
        remarks = {name: f"{REMARK} {text}" for name, text in self.health.remarks().items()}
        body = "".join(f"{name}: {state}\n" for name, state in (parts | remarks).items())
        return AsgiResponse(body.encode(), 200 if ready else 503)


class _QuietServer(uvicorn.Server):
    """uvicorn without its own signal handling: the service has one."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
