"""What may be done by whoever sets a deployment up, and how it says what was done.

The rights are derived from the stream table, like those of everybody else.
"""

from enum import StrEnum
from typing import Final

from sandherd.bus import api_subjects as api
from sandherd.bus.permissions import SERVICES, Permissions
from sandherd.contracts.names import FLEET
from sandherd.contracts.streams import BUCKETS, CONSUMERS, STREAMS
from sandherd.contracts.subjects import BY_NAME, Principal

PROVISIONER: Final = "provisioner"
INBOX: Final = f"_INBOX_{PROVISIONER}"
_USUAL_INBOX: Final = "_INBOX.>"
"""Where clients hear replies that can't be told of another place, as NACK's. None of ours has its replies there."""
EVERYTHING_KEPT: Final = Permissions(publish=(f"{api.API}.>",), subscribe=(f"{INBOX}.>",))
"""All of what the broker keeps, for a minute of the local stack's start."""


def asked_whether_there(service: Principal) -> str:
    """Where a service that is at work answers; where none is, the broker says so."""
    return BY_NAME[f"request.{service}.examine"].fill(project=FLEET)


KEPT_AND_BACK: Final = Permissions(
    publish=(f"{api.API}.>", "$JS.SNAPSHOT.>", *(asked_whether_there(service) for service in SERVICES)),
    subscribe=(f"{INBOX}.>",),
)
"""To take everything out that the broker keeps, and to put it back: for as long as one backup takes."""


class Did(StrEnum):
    """What was done about something that is to be there."""

    MADE = "made"
    CHANGED = "changed"
    KEPT = "kept"


def for_provisioner() -> Permissions:
    """To make and change what is declared. It deletes, empties and reads nothing, and so may lie in a deployment."""
    names = [*(stream.name for stream in STREAMS), *(bucket.stream for bucket in BUCKETS)]
    streams = [subject for name in names for subject in api.declaring(name)]
    consumers = [subject for row in CONSUMERS for subject in api.declaring_consumer(row.stream, row.name)]
    return Permissions(publish=(*streams, *consumers), subscribe=(f"{INBOX}.>", _USUAL_INBOX))
