"""Permissions of the credentials that set up a deployment, back it up, or check its broker.

provisioner     creates missing streams, from a separate account; valid for one hour at most
stream changes  creates streams and changes existing ones, in the account of the streams; valid for one hour at most
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
SETUP_LIFETIME: Final = 3600.0
"""Maximum lifetime of a credential that creates or changes streams, in seconds."""
_DEFAULT_INBOX: Final = "_INBOX.>"
"""The inbox of clients whose inbox prefix can't be configured, such as NACK. Sandherd's own programs do not use it."""
WHOLE_API: Final = Permissions(publish=(f"{api.API}.>",), subscribe=(f"{INBOX}.>",))
"""The permissions to use the whole JetStream API. The local stack has such a credential for a minute at its start."""
BACKUP_INBOX: Final = "_INBOX_backup"
"""The inbox to which snapshots are delivered. No other credential may subscribe to it."""


def presence_subject(service: Principal) -> str:
    """The subject of a request that a running service replies to. Without the service there is no responder."""
    return BY_NAME[f"request.{service}.examine"].fill(project=FLEET)


BACKUP_PERMISSIONS: Final = Permissions(
    publish=(f"{api.API}.>", "$JS.SNAPSHOT.>", *(presence_subject(service) for service in SERVICES)),
    subscribe=(f"{BACKUP_INBOX}.>",),
)
"""The permissions to back up and restore every stream. The credential is valid for the duration of one backup."""


PROBE: Final = "probe"
"""The user that publishes a probe message, to check whether nats-server stores messages. It is the local stack's
supervisor, and `store-guard` in a deployment.

The user is not in the account of the streams. In that account, a probe could have the subject of a record as its reply
subject, and nats-server's acknowledgement would overwrite the record.
"""
PROBE_INBOX: Final = f"_INBOX_{PROBE}"
PROBE_PERMISSIONS: Final = Permissions(publish=(probe_subject(PROBE),), subscribe=(f"{PROBE_INBOX}.>",))
"""The permissions to publish the probe message, and to receive its acknowledgement."""

WATCHER_PERMISSIONS: Final = Permissions(publish=(HEALTH,), subscribe=(f"{WATCHER_INBOX}.>",))
"""The permissions to request the health of every server.

The user is not in the system account. In that account, a request could have a subject that deletes streams as its reply
subject, and nats-server would execute its own reply (`claims.store_guard_account`).
"""

STORE_GUARD: Final = "store-guard"
"""The name of `sandherd.stack.server_guard` in its logs, and of the folder with its credentials."""
WATCHER_CREDENTIALS: Final = f"{WATCHER}.creds"


class SetupOutcome(StrEnum):
    """What set-up has done with a declared stream or consumer, or with a folder of files."""

    CREATED = "made"
    CHANGED = "changed"
    UNCHANGED = "kept"
    PENDING = "pending"
    """The consumer is missing. The spawner creates it when it starts."""


def for_provisioner() -> Permissions:
    """The permissions to create declared streams, and to inspect declared streams and consumers.

    They don't allow changing an existing stream: nats-server refuses to create a stream that exists with another
    configuration. nats-server checks neither reply subjects nor the subjects in the body of a request, so the
    provisioner is outside the account of the streams: what its requests make the server publish is neither stored nor
    delivered to the provisioner. They don't allow creating consumers, because that request can also change an existing
    consumer, for example set an `inactive_threshold`, after which the server deletes the consumer.
    """
    outside = api.API_FROM_OUTSIDE
    streams = [subject for name in _stream_names() for subject in api.creating_stream(name, outside)]
    consumers = [f"{outside}.CONSUMER.INFO.{row.stream}.{row.name}" for row in CONSUMERS]
    return Permissions(publish=(*streams, *consumers), subscribe=(f"{INBOX}.>",))


def for_stream_changes() -> Permissions:
    """The permissions to create and change the declared streams and consumers, but not to delete streams.

    A changed configuration can make all stored messages readable (`republish`), or remove them (`max_age`). Therefore
    only the holder of the root keys can create such a credential, and it expires after an hour.
    """
    streams = [subject for name in _stream_names() for subject in api.declaring(name)]
    consumers = [subject for row in CONSUMERS for subject in api.declaring_consumer(row.stream, row.name)]
    return Permissions(publish=(*streams, *consumers), subscribe=(f"{INBOX}.>", _DEFAULT_INBOX))


def _stream_names() -> list[str]:
    return [*(stream.name for stream in STREAMS), *(bucket.stream for bucket in BUCKETS)]
