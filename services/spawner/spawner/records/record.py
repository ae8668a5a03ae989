"""What tasks and sandboxes have in common as records: a name, and events said in the very write that made them true."""

import json
from datetime import datetime
from typing import Any, Self

from pydantic import BaseModel, ConfigDict

from sandherd.contracts.envelope import Envelope, parse, wrap
from sandherd.contracts.events import EVENTS, EventData
from sandherd.contracts.names import SafeName, new_uuid_at


class Record(BaseModel):
    """A record in a bucket.

    It is a source of events of its own: `sequence` counts what it has said, and `outbox` holds what is written but
    perhaps not published yet. Both change in the same compare-and-set as the state, so that a crash at any moment
    loses no event, doubles none, and leaves no gap.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    project: SafeName
    traceparent: str | None = None
    """Its own span, which is told when it ends; what happens to it is part of that."""
    parent: str | None = None
    """The span around that, if there is one."""
    sequence: int = 0
    outbox: tuple[str, ...] = ()
    sealed: str | None = None
    """What of it is secret, encrypted with a key of its own. The store writes and reads it (`records.vault`)."""

    def secret_part(self) -> str | None:
        """What of it must not be stored in clear, as text; None if there is nothing."""
        return None

    def without_secret_part(self) -> Self:
        """The record as it is stored in clear."""
        return self

    def with_secret_part(self, text: str) -> Self:
        """The record as it was, from what is stored in clear and what was sealed."""
        raise NotImplementedError

    @property
    def name(self) -> str:
        """The entity."""
        raise NotImplementedError

    @property
    def alias(self) -> str:
        """What it is known by outside of its bucket."""
        return self.name

    @property
    def source(self) -> str:
        """The source of its events; no other record ever has the same."""
        raise NotImplementedError

    def about(self) -> dict[str, str | None]:
        """The task and the sandbox that its events name."""
        raise NotImplementedError

    @property
    def key(self) -> str:
        """Its key in the bucket."""
        return f"{self.project}.{self.name}"

    @property
    def vault_key(self) -> str:
        """The name, within its bucket, of the key that its secret part is encrypted with."""
        return self.key

    def saying(self, now: datetime, *said: EventData) -> Self:
        """The record with these events to be published."""
        record = self
        for data in said:
            sequence = record.sequence + 1
            envelope = wrap(
                data,
                data.type,
                source=self.source,
                sequence=sequence,
                project=self.project,
                subject=self.name,
                time=now,
                id=new_uuid_at(now),  # made once: it is written with the state, and published from there
                traceparent=self.traceparent,
                **self.about(),
            )
            document = envelope.to_json().decode()
            record = record.model_copy(update={"sequence": sequence, "outbox": (*record.outbox, document)})
        return record

    def without(self, published: frozenset[str]) -> Self:
        """The record after these documents of its outbox were published."""
        return self.model_copy(update={"outbox": tuple(said for said in self.outbox if said not in published)})


def read_said(document: str) -> Envelope[Any]:
    """An event as it lies in an outbox."""
    return parse(document.encode(), EVENTS[json.loads(document)["type"]])
