"""Finds artifacts in the history, by the stored events that refer to them."""

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from sandherd.client import queries
from sandherd.client.errors import HerdError, validated
from sandherd.client.events import decoder
from sandherd.client.queries import SendRequest
from sandherd.contracts.artifact_references import artifact_references
from sandherd.contracts.envelope import Envelope
from sandherd.contracts.errors import Code, ContractError
from sandherd.contracts.events import ArtifactRef
from sandherd.contracts.model import Model, Moment
from sandherd.contracts.names import created_at
from sandherd.contracts.requests import ListEvents, StoredEvent

_PAGE_SIZE: Final = 500
_SEARCH_BEFORE: Final = timedelta(hours=1)
_SEARCH_AFTER: Final = timedelta(days=1)
"""How long before or after an artifact an event about it may be created: clocks differ, and an upload takes time."""


class EventArtifact(Model):
    """An artifact, and the first event that refers to it."""

    name: str
    kind: str
    """The media type, such as `text/plain` or `application/x-tar`."""
    size: int
    """The size in bytes."""
    event: str
    """The type of the event."""
    field: str
    """The field of the event's data that refers to it; for a reference in `artifacts`, the path of the value that was
    too large for the event."""
    entity: str
    """The task or sandbox that the event is about."""
    time: Moment
    """The time of the event."""
    reference: ArtifactRef
    """The reference, for `Herd.artifact`."""


@dataclass(frozen=True)
class ArtifactScope:
    """The events that are searched: those of a task and its sandboxes, of one sandbox, or of the whole project."""

    task: str | None = None
    sandbox: str | None = None
    since: datetime | None = None
    until: datetime | None = None


async def artifacts(send: SendRequest, scope: ArtifactScope) -> AsyncIterator[EventArtifact]:
    """The artifacts that stored events refer to, without repetitions, oldest first. Raises `HerdError`."""
    filters = {"task": scope.task, "sandbox": scope.sandbox, "since": scope.since, "until": scope.until}
    request = validated(
        ListEvents, limit=_PAGE_SIZE, **{name: value for name, value in filters.items() if value is not None}
    )
    seen: set[str] = set()
    async for page in queries.pages(send, request):
        for artifact in _referred_artifacts(page.events):
            if artifact.reference.subject not in seen:
                seen.add(artifact.reference.subject)
                yield artifact


async def find_artifact(send: SendRequest, name: str, scope: ArtifactScope) -> EventArtifact:
    """The artifact of this name. Raises `HerdError`: `not_found` if no event of the scope refers to it.

    If the scope is the whole project and the name was generated, only events near the time in the name are searched.
    """
    at = created_at(name)
    if scope == ArtifactScope() and at is not None:
        scope = ArtifactScope(since=at - _SEARCH_BEFORE, until=at + _SEARCH_AFTER)
    async for artifact in artifacts(send, scope):
        if artifact.name == name:
            return artifact
    raise HerdError.of(
        Code.NOT_FOUND,
        f"no event refers to an artifact {name}",
        field="artifact",
        remedy="copy its name from `sandherd artifacts list SANDBOX|TASK`",
    )


def _referred_artifacts(events: list[StoredEvent]) -> Iterator[EventArtifact]:
    for stored_event in events:
        try:
            event = decoder.from_history(stored_event)
        except ContractError:
            continue  # an event of another version: this version can't read its references
        for field, reference in artifact_references(event.data):
            yield _event_artifact(event, field, reference)


def _event_artifact(event: Envelope[Any], field: str, reference: ArtifactRef) -> EventArtifact:
    return EventArtifact(
        name=reference.artifact,
        kind=reference.media_type.partition(";")[0].strip(),
        size=reference.size,
        event=event.type,
        field=field,
        entity=event.subject,
        time=event.time.astimezone(UTC),
        reference=reference,
    )
