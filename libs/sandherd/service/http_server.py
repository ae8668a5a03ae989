"""The HTTP server of a service: /metrics, /healthz and /readyz."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import uvicorn
from faststream.asgi import AsgiFastStream, AsgiResponse, get
from faststream.nats import NatsBroker
from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector, make_asgi_app

from sandherd.bus.health import WARNING_PREFIX, Health
from sandherd.private_files import write_file
from sandherd.service.http_connections import BoundedConnection, ConnectionLimits, OpenConnections, open_files
from sandherd.service.uvicorn_server import MAX_HEADER_BYTES, serving
from sandherd.telemetry.meters import Meters


class ServiceHttpServer:
    """Serves a service's metrics and health."""

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
        """Serve HTTP until the block ends. Raises `HttpServerError` if the port is in use.

        Port 0 means any free port. The actual port is in `self.port`, and is written to `port_file`.
        """
        async with serving(self._config(broker, host, port)) as server:
            self.port = server.servers[0].sockets[0].getsockname()[1]
            if port_file is not None:
                write_file(port_file, str(self.port))
            yield

    def _config(self, broker: NatsBroker, host: str, port: int) -> uvicorn.Config:
        loop = asyncio.get_running_loop()
        open_connections = OpenConnections(
            self.limits.within(open_files()), loop.time, loop.call_soon, self._count_dropped
        )
        return uvicorn.Config(
            self._application(broker),
            host=host,
            port=port,
            http=partial(BoundedConnection, open_connections),  # type: ignore[arg-type]  # only called, as a class would be
            ws="none",
            lifespan="off",
            # Without this timeout, uvicorn waits without limit until all connections are closed.
            timeout_graceful_shutdown=int(self.limits.exchange),
            h11_max_incomplete_event_size=MAX_HEADER_BYTES,
            log_config=None,
            access_log=False,
        )

    def _count_dropped(self, reason: str) -> None:
        self.meters.count("sandherd_http_connections_dropped_total", reason=reason)

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
        """Liveness: a reply shows that the event loop runs."""
        return AsgiResponse(b"ok\n", 200)

    async def _readyz(self, _scope: Any) -> AsgiResponse:
        """Readiness: 200 if every required part is healthy, else 503. The body lists the parts and the warnings."""
        parts = self.health.parts()
        ready = all(state == "ok" for state in parts.values())
        warnings = {name: f"{WARNING_PREFIX} {text}" for name, text in self.health.warnings().items()}
        body = "".join(f"{name}: {state}\n" for name, state in (parts | warnings).items())
        return AsgiResponse(body.encode(), 200 if ready else 503)
