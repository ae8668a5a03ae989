"""Publishes events: redacts and truncates them, adds an envelope, and waits until the spool has stored them."""

import asyncio
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import cache, partial
from types import UnionType
from typing import IO, Any, Final, Literal, NamedTuple, Union, get_args, get_origin

from pydantic import ValidationError
from pydantic_core import PydanticSerializationError

from sandherd.contracts.envelope import write
from sandherd.contracts.envelope_writer import EnvelopeWriter
from sandherd.contracts.errors import ContractError
from sandherd.contracts.events import ArtifactRef, EventData
from sandherd.contracts.events.agent import AgentError, AgentShutdown
from sandherd.contracts.events.base import Digest
from sandherd.contracts.names import new_uuid
from sandherd.contracts.subjects import OUTPUT, event_subject
from sandherd_worker.artifact_records import ArtifactRecords, make_artifact
from sandherd_worker.assignment import Assignment
from sandherd_worker.plain_events import ARTIFACTS, has_long_text, is_plain
from sandherd_worker.redaction import Redactor
from sandherd_worker.spool import Spool
from sandherd_worker.spool_file import RecordKind, RecordMark, SpoolRecord
from sandherd_worker.storable_text import valid_text
from sandherd_worker.truncation import NARROW, WIDE, SizeBudget, truncate

_MAX_CHUNKS_IN_FLIGHT: Final = 32
_MAX_DEPTH: Final = 100
"""Maximum nesting depth of published values: readers, such as JSON parsers of many languages, fail at about 200."""
_UNCHECKED_EVENTS: Final = 5
"""The number of events after an event with a secret that are redacted without a check whether that is needed."""
_INVALID: Final = (ValidationError, ContractError, PydanticSerializationError, RecursionError, ValueError)


def now() -> datetime:
    """The current time in UTC, timezone-aware."""
    return datetime.now(UTC)


class EncodedEvent(NamedTuple):
    """An event as it is published, its record, and the records of its artifacts, which are stored before it."""

    data: EventData
    record: SpoolRecord
    artifacts: Sequence[SpoolRecord] = ()


class Emitter:
    """Publishes the events of one sandbox. `emit` returns when the event can no longer be lost."""

    def __init__(
        self, spool: Spool, assignment: Assignment, redactor: Redactor, clock: Callable[[], datetime] = now
    ) -> None:
        self.redactor: Final = redactor
        self._spool = spool
        self._assignment = assignment
        self._clock = clock
        self._envelopes = EnvelopeWriter(
            source=assignment.source,
            project=assignment.project,
            subject=assignment.sandbox,
            taskid=assignment.task,
            sandboxid=assignment.sandbox,
            traceparent=assignment.traceparent,
        )
        self._changed_lately = 0
        """How many more events are redacted without a check whether that is needed."""
        self._subject_of = cache(partial(event_subject, assignment.project, assignment.sandbox))
        self._output_subject = OUTPUT.fill(project=assignment.project, sandbox=assignment.sandbox)

    async def emit(self, data: EventData, *, use_reserve: bool = False) -> bool:
        """Publish an event, and wait until it is on disk; its large values are stored before it as artifacts.

        Returns False if the event is not published, because it is a second end of the attempt, or invalid. Instead of
        an invalid event, an error that names it is published. Raises `SpoolError`.
        """
        if data.terminal and self._spool.ended:
            return False
        waiting: list[asyncio.Future[None]] = []
        published: list[EventData] = []

        def append_artifacts(sequence: int) -> SpoolRecord:
            encoded = self.encode(data, sequence)
            published.append(encoded.data)
            waiting.extend(self._spool.append(record) for record in encoded.artifacts)
            return encoded.record

        # All records are appended without an await in between, so the order in the spool is the order of the calls.
        waiting.append(self._spool.append_event(append_artifacts, use_reserve=use_reserve))
        await _all(waiting)
        return type(published[0]) is type(data)

    async def output(self, chunk: bytes) -> None:
        """Publish terminal bytes, redacted by the caller. Raises `SpoolError`."""
        await self._spool.append(SpoolRecord(RecordKind.OUTPUT, self._output_subject, str(new_uuid()), chunk))

    async def store_artifact(self, content: bytes) -> ArtifactRef:
        """Store text, redacted by the caller, as an artifact, and return its reference. Raises `SpoolError`."""
        artifact = make_artifact(content, self._assignment.project, self._assignment.sandbox)
        await _all([self._spool.append(record) for record in artifact.records])
        return artifact.reference

    async def store_file(self, file: IO[bytes], media_type: str) -> ArtifactRef:
        """Store a file's content unchanged as an artifact, a part of it at a time. Raises `SpoolError`."""
        chunks = ArtifactRecords(self._assignment.project, self._assignment.sandbox, media_type)
        waiting: list[asyncio.Future[None]] = []
        for record in chunks.cut(file):
            waiting.append(self._spool.append(record))
            if len(waiting) >= _MAX_CHUNKS_IN_FLIGHT:
                await _all(waiting)
                waiting.clear()
        await _all(waiting)
        return chunks.reference()

    def encode(self, data: EventData, sequence: int) -> EncodedEvent:
        """The event's record, with this sequence number.

        An invalid event is replaced by an error that names it. If it ends the attempt, its error is raised.
        """
        try:
            return self._encode(data, sequence)
        except _INVALID as error:
            if data.terminal:
                raise
            invalid = AgentError(error=f"a {data.type} could not be published: {type(error).__name__}", phase="emit")
            return self._encoded(invalid, write(invalid), sequence)

    def _encode(self, data: EventData, sequence: int) -> EncodedEvent:
        document = self._unchanged(data)
        return self._encode_changed(data, sequence) if document is None else self._encoded(data, document, sequence)

    def _unchanged(self, data: EventData) -> bytes | None:
        """The event's document if it certainly needs no redaction and no truncation, like most events; else None.

        Some events after an event with a secret are not checked, because they often contain the same secret.
        """
        values = data.__dict__
        if self._changed_lately > 0 or values.get(ARTIFACTS) is not None:
            self._changed_lately -= 1
            return None
        if has_long_text(values):
            return None
        try:
            document = write(type(data).model_validate(values))
        except _INVALID:
            return None
        if not is_plain(type(data), document):
            return None
        if self.redactor.may_change(document):
            self._changed_lately = _UNCHECKED_EVENTS
            return None
        return document

    def _encode_changed(self, data: EventData, sequence: int) -> EncodedEvent:
        fields = self._clean(data)
        try:
            return self._encode_within(WIDE, type(data), fields, sequence)
        except ContractError:
            return self._encode_within(NARROW, type(data), fields, sequence)

    def _clean(self, data: EventData) -> dict[str, Any]:
        """The fields without secrets and without characters that can't be stored."""
        closed = _closed_fields(type(data))
        return {
            name: value if value is None or name in closed else self.redactor.value(_valid_value(value, _MAX_DEPTH))
            for name, value in data.model_dump().items()
        }

    def _encode_within(
        self, budget: SizeBudget, model: type[EventData], fields: dict[str, Any], sequence: int
    ) -> EncodedEvent:
        """The event with its large values stored as artifacts. Raises `ContractError` if it is still too large."""
        artifacts: list[SpoolRecord] = []

        def store(content: bytes, media_type: str) -> dict[str, Any]:
            artifact = make_artifact(content, self._assignment.project, self._assignment.sandbox, media_type)
            artifacts.extend(artifact.records)
            return artifact.reference.model_dump()

        own = {name: value for name, value in fields.items() if name != ARTIFACTS}
        truncated = truncate(own, budget, store)
        references = {**(fields.get(ARTIFACTS) or {}), **truncated.artifacts}
        data = model.model_validate({**truncated.fields, ARTIFACTS: references or None})
        return self._encoded(data, write(data), sequence, artifacts)

    def _encoded(
        self, data: EventData, document: bytes, sequence: int, artifacts: Sequence[SpoolRecord] = ()
    ) -> EncodedEvent:
        identity = new_uuid()
        envelope = self._envelopes.enclose(document, data.type, id=identity, time=self._clock(), sequence=sequence)
        subject = self._subject_of(data.type)
        record = SpoolRecord(RecordKind.EVENT, subject, str(identity), envelope, sequence, _mark(data))
        return EncodedEvent(data, record, artifacts)


def _mark(data: EventData) -> RecordMark:
    if data.terminal:
        return RecordMark.TERMINAL
    return RecordMark.LAST_EVENT if isinstance(data, AgentShutdown) else RecordMark.NONE


@cache
def _closed_fields(model: type[EventData]) -> set[str]:
    """The fields with a closed set of values, and digests: they can't contain a secret, and must not be changed."""
    return {name for name, info in model.model_fields.items() if _is_closed(info.annotation)}


def _is_closed(annotation: Any) -> bool:
    if get_origin(annotation) in {Union, UnionType}:
        return all(part is type(None) or _is_closed(part) for part in get_args(annotation))
    return get_origin(annotation) is Literal or annotation == Digest


def _valid_value(value: Any, deepest: int) -> Any:
    """The value with `valid_text` applied to all strings and keys. Raises `RecursionError`."""
    if isinstance(value, str):
        return valid_text(value)
    if deepest == 0 and isinstance(value, dict | list | tuple):
        raise RecursionError
    if isinstance(value, dict):
        return {_valid_value(key, 1): _valid_value(item, deepest - 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_valid_value(item, deepest - 1) for item in value]
    return value


async def _all(waiting: Sequence[asyncio.Future[None]]) -> None:
    """Wait for all futures. If some fail, raise the first error."""
    if len(waiting) == 1:
        await waiting[0]
        return
    for result in await asyncio.gather(*waiting, return_exceptions=True):
        if isinstance(result, BaseException):
            raise result
