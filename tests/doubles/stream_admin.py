"""The part of the spawner that changes streams for other services, alone: real code, without runtimes and records."""

from contextlib import AbstractAsyncContextManager

from sandherd.contracts.subjects import Principal
from sandherd.service.service import Service
from sandherd.service.stream_admin import StreamAdmin
from sandherd.stack.broker import Broker


def stream_admin(herd: Broker) -> AbstractAsyncContextManager[Service]:
    """It answers while the context is open."""
    service = Service(Principal.SPAWNER, herd.settings(Principal.SPAWNER))
    StreamAdmin(service).register()
    return service.running()
