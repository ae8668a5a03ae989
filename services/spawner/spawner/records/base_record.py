"""Base of task and sandbox records: a name, and events stored in the same write as the state that they report."""

import json
from dataclasses import dataclass
from datetime import datetime
from typing import Generic, Self, TypeVar

from pydantic import BaseModel, ConfigDict

from sandherd.contracts.envelope import wrap
from sandherd.contracts.events import EventData
from sandherd.contracts.names import SafeName, new_uuid_at
from sandherd.contracts.subjects import event_subject


class StoreUnavailableError(Exception):
    """The bucket did not respond. The change may or may not have been applied; it is safe to repeat."""


class Record(BaseModel):
    """A record in a bucket.

    It is its own source of events: `sequence` counts them, and `outbox` contains those that are perhaps not published
    yet. Both change in the same compare-and-set as the state, so a crash at any moment loses no event,
    duplicates none, and leaves no gap.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    project: SafeName
    traceparent: str | None = None
    """The trace context of the record's own span, which is recorded when it ends. It is the parent of related spans."""
    parent: str | None = None
    """The parent of that span, if there is one."""
    sequence: int = 0
    outbox: tuple[str, ...] = ()
    sealed: str | None = None
    """The secret part, encrypted with the record's own key. The store writes and reads it (`records.vault`)."""

    def secret_part(self) -> str | None:
        """The part that must not be stored in plain text, as text; None if there is no such part."""
        return None

    def without_secret_part(self) -> Self:
        """The record as stored in plain text."""
        return self

    def with_secret_part(self, text: str) -> Self:
        """The original record, from the plain-text part and the decrypted secret part."""
        raise NotImplementedError

    @property
    def name(self) -> str:
        """The name of the task or sandbox."""
        raise NotImplementedError

    @property
    def runtime_unit(self) -> str:
        """Its name in its runtime, if that may differ from the record's name."""
        return self.name

    @property
    def source(self) -> str:
        """The source of its events, unique to this record."""
        raise NotImplementedError

    def event_ids(self) -> dict[str, str | None]:
        """The ids of the task and of the sandbox in its events."""
        raise NotImplementedError

    @property
    def key(self) -> str:
        """Its key in the bucket."""
        return f"{self.project}.{self.name}"

    @property
    def vault_key(self) -> str:
        """The name, within its bucket, of the key that encrypts its secret part."""
        return self.key

    def with_events(self, now: datetime, *events: EventData) -> Self:
        """The record with these events added to its outbox."""
        record = self
        for data in events:
            sequence = record.sequence + 1
            envelope = wrap(
                data,
                data.type,
                source=self.source,
                sequence=sequence,
                project=self.project,
                subject=self.name,
                time=now,
                id=new_uuid_at(now),  # created once: it is written with the state and published from there
                traceparent=self.traceparent,
                **self.event_ids(),
            )
            document = envelope.to_json().decode()
            record = record.model_copy(update={"sequence": sequence, "outbox": (*record.outbox, document)})
        return record

    def without(self, published: frozenset[str]) -> Self:
        """The record without these published documents in its outbox."""
        remaining = tuple(document for document in self.outbox if document not in published)
        return self.model_copy(update={"outbox": remaining})


def address_of(document: str) -> tuple[str, str]:
    """The subject of an event from an outbox, and its id."""
    event = json.loads(document)
    return event_subject(event["project"], event["subject"], event["type"]), event["id"]


ViewT_co = TypeVar("ViewT_co", covariant=True)


@dataclass(frozen=True, slots=True)
class IndexEntry(Generic[ViewT_co]):
    """The indexed state of one record: its view, and the revision of that view.

    `unsaid` is whether its outbox contains events, which may not be published yet.
    """

    revision: int
    view: ViewT_co
    unsaid: bool
    runtime_unit: str = ""
    """Its name in its runtime: by default the record's name."""
    size: int = 0
    """Size of the stored record, in bytes."""
