"""Ids that whoever has a key derives again, and nobody else can compute."""

import hmac
import json
from datetime import datetime
from uuid import UUID

from sandherd.contracts.names import uuid_at


class DerivedIds:
    """UUIDv7 derived from facts with a key, so that a step done twice, also by another replica, is one event.

    Whoever knows the id of an event before it is published can publish something else under it first, and the broker
    then drops the event as a duplicate. So the key has to be a secret of the service that derives.
    """

    def __init__(self, key: bytes) -> None:
        self._key = key

    def derive(self, at: datetime, *facts: object) -> UUID:
        """The id for this moment and these facts: the same one with the same key, and unrelated to that of others.

        The time bits are `at`'s milliseconds; the random bits of RFC 9562 §5.7 are an HMAC-SHA-256 of the facts.
        """
        told = json.dumps([str(fact) for fact in facts]).encode()  # no two lists of facts are one text
        return uuid_at(at, hmac.digest(self._key, told, "sha256"))
