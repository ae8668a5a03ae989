"""Connections with a provisioner's credential, and the streams that it could try to change."""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Final

from sandherd.bus.api_subjects import API_FROM_OUTSIDE
from sandherd.bus.auth.setup_permissions import INBOX
from sandherd.bus.connection import Bus, ConnectionCallbacks, ConnectionIdentity
from sandherd.bus.identity import Registrar
from sandherd.bus.identity.credentials import parts_of
from sandherd.bus.stream_configs import bucket_config, stream_config
from sandherd.contracts.streams import BUCKETS, BY_STREAM, STREAMS
from sandherd.contracts.subjects import Principal
from sandherd.stack.broker import Broker
from tests.integration.bus.test_permissions_matrix import Publisher
from tests.patience import PATIENCE

NAMES: Final = [*(stream.name for stream in STREAMS), *(bucket.stream for bucket in BUCKETS)]
STOLEN: Final = f"{INBOX}.stolen"
TASKS: Final = next(bucket for bucket in BUCKETS if bucket.name == "tasks")


def bus_with(
    herd: Broker, credentials: str, api: str = API_FROM_OUTSIDE, **options: Any
) -> AbstractAsyncContextManager[Bus]:
    token, key = parts_of(credentials)
    own: dict[str, Any] = {"identity": ConnectionIdentity.renewing(lambda: token, key), "inbox": INBOX, "api": api}
    settings = own | {"connect_timeout": PATIENCE} | options
    return Bus.open(herd.url, name="provisioner", **settings)


@asynccontextmanager
async def attacker(herd: Broker) -> AsyncIterator[Publisher]:
    """A connection with the provisioner's credential, and the broker's refusals."""
    watch, violations = ConnectionCallbacks(), list[str]()
    watch.violated = violations.append
    async with bus_with(herd, Registrar(herd.identity).mint_provisioner(), watch=watch) as bus:
        yield Publisher(Principal.OPERATOR, bus, violations)


def configured(name: str, **changed: Any) -> dict[str, Any]:
    """A stream's declared configuration as it is sent to the broker, with changes."""
    declared = stream_config(BY_STREAM[name]) if name in BY_STREAM else bucket_config(TASKS)
    return {**declared.as_dict(), **changed}
