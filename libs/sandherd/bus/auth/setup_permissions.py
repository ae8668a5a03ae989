"""Permissions of the credentials that set up a deployment or check its broker, derived from the stream table.

provisioner     creates missing streams, from a separate account; valid for one hour
stream changes  creates streams and changes existing ones, in the account of the streams; valid for one hour
stream admin    may use the whole JetStream API; used at the local stack's start
backup          may use the whole JetStream API, and snapshots
"""

from enum import StrEnum
from typing import Final

from sandherd.bus import api_subjects as api
from sandherd.bus.auth.health_subjects import HEALTH, WATCHER, WATCHER_INBOX
from sandherd.bus.auth.permissions import SERVICES, Permissions, probe_subject
from sandherd.contracts.names import FLEET
from sandherd.contracts.streams import BUCKETS, CONSUMERS, STREAMS
from sandherd.contracts.subjects import BY_NAME, Principal

PROVISIONER: Final = "provisioner"
INBOX: Final = f"_INBOX_{PROVISIONER}"
LIFE: Final = 3600.0
"""Maximum lifetime of a provisioner's credential, in seconds."""
_USUAL_INBOX: Final = "_INBOX.>"
"""The inbox of clients whose inbox prefix can't be configured, such as NACK. Sandherd receives no replies there."""
WHOLE_API: Final = Permissions(publish=(f"{api.API}.>",), subscribe=(f"{INBOX}.>",))
"""The whole JetStream API, for one minute at the local stack's start."""
BACKUP_INBOX: Final = "_INBOX_backup"
"""Snapshots are delivered here. No other credential may subscribe to it."""


def presence_subject(service: Principal) -> str:
    """The subject to which a running service replies; if the service does not run, the broker reports no responders."""
    return BY_NAME[f"request.{service}.examine"].fill(project=FLEET)


BACKUP_PERMISSIONS: Final = Permissions(
    publish=(f"{api.API}.>", "$JS.SNAPSHOT.>", *(presence_subject(service) for service in SERVICES)),
    subscribe=(f"{BACKUP_INBOX}.>",),
)
"""The permissions to back up and restore every stream. The credential is valid for the duration of one backup."""


PROBE: Final = "probe"
"""The user that checks whether nats-server stores: the local stack's supervisor, and `store-guard` of a deployment.

It is outside the account of the streams, where the reply subject of a probe could overwrite records.
"""
PROBE_INBOX: Final = f"_INBOX_{PROBE}"
PROBING: Final = Permissions(publish=(probe_subject(PROBE),), subscribe=(f"{PROBE_INBOX}.>",))
"""The permissions to publish the probe message, and to receive its acknowledgement."""

WATCHING: Final = Permissions(publish=(HEALTH,), subscribe=(f"{WATCHER_INBOX}.>",))
"""The permissions to request the health of every server. The user is not in the system account, where the reply subject
of a request could delete streams (`claims.store_guard_account`)."""

STORE_GUARD: Final = "store-guard"
"""The folder with the credentials of `sandherd.stack.server_guard`."""
WATCHER_CREDENTIALS: Final = f"{WATCHER}.creds"


class PartState(StrEnum):
    """What was done about a declared stream or consumer, or about a folder of files."""

    MADE = "made"
    CHANGED = "changed"
    UNCHANGED = "kept"
    PENDING = "pending"
    """Nothing: it is missing, and the spawner creates it when it starts."""


def for_provisioner() -> Permissions:
    """To create declared streams, and to inspect declared streams and consumers.

    These permissions can't change existing streams: nats-server refuses to create one with another configuration. It
    checks neither reply subjects nor the subjects in a request's body, so the provisioner is outside the account of the
    streams: whatever it makes the server publish is neither delivered to it nor stored. It creates no consumers,
    because the request that creates one can change an existing one, so that the server deletes it
    (`inactive_threshold`).
    """
    outside = api.API_FROM_OUTSIDE
    streams = [subject for name in _names() for subject in api.creating_stream(name, outside)]
    consumers = [f"{outside}.CONSUMER.INFO.{row.stream}.{row.name}" for row in CONSUMERS]
    return Permissions(publish=(*streams, *consumers), subscribe=(f"{INBOX}.>",))


def for_stream_changes() -> Permissions:
    """To create and change the declared streams and consumers, but not to delete streams.

    A configuration can make all stored messages readable (`republish`), or remove them (`max_age`). So this credential
    is minted only from the root keys, for an hour.
    """
    streams = [subject for name in _names() for subject in api.declaring(name)]
    consumers = [subject for row in CONSUMERS for subject in api.declaring_consumer(row.stream, row.name)]
    return Permissions(publish=(*streams, *consumers), subscribe=(f"{INBOX}.>", _USUAL_INBOX))


def _names() -> list[str]:
    return [*(stream.name for stream in STREAMS), *(bucket.stream for bucket in BUCKETS)]
