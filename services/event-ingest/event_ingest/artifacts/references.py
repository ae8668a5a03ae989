"""The artifacts that events refer to, as rows, and the statement that stores the rows. Pure."""

from collections.abc import Iterator
from datetime import UTC, date, datetime
from itertools import islice
from typing import Final
from uuid import UUID

from event_ingest.canonical_events import ParsedEvent
from event_ingest.schema import DAYS_BEFORE
from sandherd.contracts.artifact_references import artifact_references
from sandherd.contracts.chunks import chunk_count
from sandherd.contracts.events.base import ArtifactRef
from sandherd.contracts.names import is_safe_name
from sandherd.contracts.subjects import ARTIFACT

MARK: Final = ARTIFACT.template.partition("{")[0].encode()
"""The beginning of every artifact subject. The document of an event that refers to an artifact contains it."""
ArtifactRow = tuple[str, str, str, str, int, int, date]
"""The values of one row: project, owner, name, SHA-256, size, chunks, and the day of the event's id."""
_MAX_BYTES: Final = 8 << 30
"""References to larger artifacts are ignored: the stream can't store as much."""
_MAX_REFERENCES: Final = 64
"""Maximum references that are stored for one event, because a sandbox may name any number."""
_LATEST_MS: Final = datetime(9999, 12, 31, tzinfo=UTC).timestamp() * 1000
"""The largest time in milliseconds that can be converted to a `date`: an id may contain any time."""

ADD_REFERENCES: Final = f"""
insert into artifacts as a (project, owner, artifact, sha256, size, chunks, day)
select project, owner, artifact, sha256, max(size), max(chunks), max(case
    when day >= current_date - {DAYS_BEFORE} then day else current_date end)
from unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::bigint[], $6::integer[], $7::date[])
    as r (project, owner, artifact, sha256, size, chunks, day)
group by project, owner, artifact, sha256 order by project, owner, artifact, sha256
on conflict (project, owner, artifact, sha256) do update set day = excluded.day where a.day < excluded.day
"""  # noqa: S608  # our own numbers
"""Store references, with the day in the event's id. If that day may be dropped already, the current day is stored."""


def referred_artifacts(event: ParsedEvent) -> Iterator[ArtifactRow]:
    """The artifacts that an event refers to, and that belong to its project.

    An event that a worker has published may refer only to artifacts of its own sandbox: a sandbox must not decide what
    is stored under the name of another one. Other references are ignored.
    """
    for _, reference in islice(artifact_references(event.data), _MAX_REFERENCES):
        tokens = ARTIFACT.match(reference.subject) or {}
        owner = tokens.get("sandbox", "")
        if event.type.startswith("agent.") and owner != event.subject:
            continue
        artifact = reference.artifact
        matches = tokens.get("project") == event.project and tokens.get("artifact") == artifact
        if matches and is_safe_name(owner) and is_safe_name(artifact) and _is_possible(reference):
            yield event.project, owner, artifact, reference.sha256, reference.size, reference.chunks, _day(event.id)


def _is_possible(reference: ArtifactRef) -> bool:
    return reference.size <= _MAX_BYTES and reference.chunks == chunk_count(reference.size)


def _day(id_: UUID) -> date:
    """The day of a UUIDv7 (RFC 9562)."""
    return datetime.fromtimestamp(min(id_.int >> 80, _LATEST_MS) / 1000, UTC).date()
