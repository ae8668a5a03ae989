"""Composes the gateway: an HTTP server that forwards its requests over the broker. It has no state."""

import asyncio
from functools import cached_property
from typing import TYPE_CHECKING, Final

from gateway.access_tokens import TokenReader
from gateway.api_server import ApiServer
from gateway.application import application
from gateway.downloads import DownloadSpace
from gateway.event_stream import EventStreams
from gateway.live_feeds import LiveFeeds
from gateway.request_guard import RequestGuard
from gateway.request_heads import hosts_of
from gateway.sessions import Backend
from gateway.sockets import SocketTable
from gateway.webhooks import RecentDeliveries
from sandherd.contracts.subjects import Principal
from sandherd.service.service import Service, serve
from sandherd.settings import Settings
from sandherd.telemetry import logs

if TYPE_CHECKING:
    from gateway.oidc.sign_in import OidcSignIn

_STATUS_CLASSES: Final = {2: "2xx", 4: "4xx", 5: "5xx"}
_log: Final = logs.get("gateway")


class Gateway:
    """The parts of the service, created once it is connected."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self.api = ApiServer(self._guard(), self._count_dropped)
        self._serving = False
        service.health.add("api", lambda: None if self._serving else "not served yet")

    async def run(self) -> None:
        """Serve the API until the service ends."""
        settings, meters = self._service.settings, self._service.meters
        meters.watch("sandherd_gateway_streams", lambda: self._streams.feeds.clients)
        async with self.api.open(settings.gateway_host, settings.gateway_port, settings.gateway_port_file):
            self._serving = True
            _log.info("serving the HTTP API", http_port=self.api.port)
            try:
                await asyncio.Event().wait()
            finally:
                self._streams.stop()

    @cached_property
    def _streams(self) -> EventStreams:
        bus = self._service.bus
        return EventStreams(LiveFeeds(bus), TokenReader(bus), self._service.meters)

    @cached_property
    def _backend(self) -> Backend:
        service = self._service
        return Backend(
            service.bus,
            self._streams,
            DownloadSpace(),
            SocketTable(),
            RecentDeliveries(),
            service.settings.gateway_webhook_secrets,
            service.examining.examine,
            oidc=self._oidc(),
        )

    def _oidc(self) -> "OidcSignIn | None":
        """Sign-in by an OpenID provider; its modules are imported only if the settings name a provider."""
        if self._service.settings.oidc_issuer is None:
            return None
        from gateway.oidc.sign_in import OidcSignIn

        return OidcSignIn(self._service.settings)

    def _guard(self) -> RequestGuard:
        settings = self._service.settings
        return RequestGuard(
            application(lambda: self._backend),
            lambda: self._streams.tokens,
            hosts=settings.gateway_hosts | hosts_of(settings.gateway_url),
            secure=(settings.gateway_url or "").startswith("https:"),
            per_second=settings.gateway_requests_per_second,
            on_response=self._measure,
        )

    def _measure(self, status: int, seconds: float) -> None:
        self._service.meters.count(
            "sandherd_gateway_requests_total", status=_STATUS_CLASSES.get(status // 100, "other")
        )
        self._service.meters.observe("sandherd_gateway_request_seconds", seconds)

    def _count_dropped(self, reason: str) -> None:
        self._service.meters.count("sandherd_http_connections_dropped_total", reason=reason)


def compose(settings: Settings) -> Service:
    """The gateway, ready to run."""
    service = Service(Principal.GATEWAY, settings)
    gateway = Gateway(service)
    service.background("api", gateway.run)
    return service


def main() -> None:
    """Run until stopped."""
    serve(Principal.GATEWAY, compose)


if __name__ == "__main__":
    main()
