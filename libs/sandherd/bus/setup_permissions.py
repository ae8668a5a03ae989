"""Permissions of the credentials that set a deployment up or check its broker, derived from the stream table.

provisioner     creates streams that are missing, from an account of its own; one hour
stream changes  also changes what exists, in the account of the streams; minted from the root keys for one hour
stream admin    the whole JetStream API: the local stack's start
backup          the same, and snapshots
"""

from enum import StrEnum
from typing import Final

from sandherd.bus import api_subjects as api
from sandherd.bus.permissions import SERVICES, Permissions, probe_subject
from sandherd.contracts.names import FLEET
from sandherd.contracts.streams import BUCKETS, CONSUMERS, STREAMS
from sandherd.contracts.subjects import BY_NAME, Principal

PROVISIONER: Final = "provisioner"
INBOX: Final = f"_INBOX_{PROVISIONER}"
LIFE: Final = 3600.0
"""How long a provisioner's credential is accepted at most, in seconds."""
_USUAL_INBOX: Final = "_INBOX.>"
"""The inbox of clients whose prefix can't be configured, such as NACK's. None of ours receives replies there."""
EVERYTHING_KEPT: Final = Permissions(publish=(f"{api.API}.>",), subscribe=(f"{INBOX}.>",))
"""The whole JetStream API, for a minute of the local stack's start."""
BACKUP_INBOX: Final = "_INBOX_backup"
"""Snapshots are delivered here. No other credential may subscribe to it."""


def asked_whether_there(service: Principal) -> str:
    """Where a service that is at work answers; where none is, the broker says so."""
    return BY_NAME[f"request.{service}.examine"].fill(project=FLEET)


KEPT_AND_BACK: Final = Permissions(
    publish=(f"{api.API}.>", "$JS.SNAPSHOT.>", *(asked_whether_there(service) for service in SERVICES)),
    subscribe=(f"{BACKUP_INBOX}.>",),
)
"""To back up and restore every stream: for as long as one backup takes."""


PROBE: Final = "probe"
"""Whoever checks whether nats-server stores: the local stack's supervisor, and `store-guard` of a deployment.

It is outside of the account of the streams, where the reply subject of a probe overwrites records.
"""
PROBE_INBOX: Final = f"_INBOX_{PROBE}"
PROBING: Final = Permissions(publish=(probe_subject(PROBE),), subscribe=(f"{PROBE_INBOX}.>",))
"""To write one message of its own, and to receive the acknowledgement."""

HEALTH: Final = "$SYS.REQ.SERVER.PING.HEALTHZ"
"""Where every server of a cluster reports its health."""
WATCHER: Final = "watcher"
WATCHER_INBOX: Final = f"_INBOX_{WATCHER}"
WATCHING: Final = Permissions(publish=(HEALTH,), subscribe=(f"{WATCHER_INBOX}.>",))
"""To request the health of every server. Outside of the system account, for the same reason."""

STORE_GUARD: Final = "store-guard"
"""The folder with the credentials of `sandherd.stack.server_guard`."""
WATCHER_CREDENTIALS: Final = f"{WATCHER}.creds"


class Did(StrEnum):
    """What was done about something that is to be there."""

    MADE = "made"
    CHANGED = "changed"
    KEPT = "kept"
    PENDING = "pending"
    """It is missing, and the spawner creates it when it starts."""


def for_provisioner() -> Permissions:
    """To create declared streams and to inspect what is declared. Once everything exists it has no effect.

    nats-server refuses to create an existing stream with another configuration. It checks neither reply subjects nor
    the subjects in a request's body, so the provisioner is outside the account of the streams: nothing that it has
    the server publish comes back to it or is stored. It creates no consumers, because the request that creates one
    also changes an existing one (`inactive_threshold` has the server delete it).
    """
    outside = api.API_FROM_OUTSIDE
    streams = [subject for name in _names() for subject in api.creating_stream(name, outside)]
    consumers = [f"{outside}.CONSUMER.INFO.{row.stream}.{row.name}" for row in CONSUMERS]
    return Permissions(publish=(*streams, *consumers), subscribe=(f"{INBOX}.>",))


def for_stream_changes() -> Permissions:
    """To create and change what is declared, without deleting streams.

    It can read (`republish`), empty (`max_age`) and overwrite everything that is stored, so it is minted from the
    root keys only, for an hour.
    """
    streams = [subject for name in _names() for subject in api.declaring(name)]
    consumers = [subject for row in CONSUMERS for subject in api.declaring_consumer(row.stream, row.name)]
    return Permissions(publish=(*streams, *consumers), subscribe=(f"{INBOX}.>", _USUAL_INBOX))


def _names() -> list[str]:
    return [*(stream.name for stream in STREAMS), *(bucket.stream for bucket in BUCKETS)]
