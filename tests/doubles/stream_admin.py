"""The part of the spawner that changes streams for other services, without runtimes and records."""

from contextlib import AbstractAsyncContextManager

from sandherd.contracts.subjects import Principal
from sandherd.service.service import Service
from sandherd.service.stream_admin import StreamAdmin
from sandherd.stack.broker import Broker


def stream_admin(herd: Broker) -> AbstractAsyncContextManager[Service]:
    """Run it until the end of the context."""
    service = Service(Principal.SPAWNER, herd.settings(Principal.SPAWNER))
    StreamAdmin(service).register()
    return service.running()
