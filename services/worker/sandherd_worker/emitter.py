"""Saying what the agent does: redact, make it fit, put it into an envelope, and wait until the spool has it."""

import asyncio
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import cache
from typing import IO, Any, Final, Literal, get_origin

from pydantic import ValidationError
from pydantic_core import PydanticSerializationError

from sandherd.contracts.envelope import wrap
from sandherd.contracts.errors import ContractError
from sandherd.contracts.events import ArtifactRef, EventData
from sandherd.contracts.events.agent import AgentError, AgentShutdown
from sandherd.contracts.names import new_uuid
from sandherd.contracts.subjects import OUTPUT, event_subject
from sandherd_worker.artifacts import Pieces, make_artifact
from sandherd_worker.assignment import Assignment
from sandherd_worker.fitting import NARROW, WIDE, Room, fit
from sandherd_worker.redaction import Redactor
from sandherd_worker.sound import sound
from sandherd_worker.spool import Spool
from sandherd_worker.spool_file import Kind, Mark, Record

_PIECES_TOGETHER: Final = 32
_DEEPEST: Final = 100
"""How deeply what is said may be nested: readers give up at some 200, and so does JSON in many languages."""
_CANT_BE_SAID: Final = (ValidationError, ContractError, PydanticSerializationError, RecursionError, ValueError)


def now() -> datetime:
    """This moment, aware."""
    return datetime.now(UTC)


class Emitter:
    """The voice of one sandbox. `emit` returns when what was said can no longer be lost."""

    def __init__(
        self, spool: Spool, assignment: Assignment, redactor: Redactor, clock: Callable[[], datetime] = now
    ) -> None:
        self.redactor: Final = redactor
        self._spool = spool
        self._who = assignment
        self._clock = clock
        self._output_subject = OUTPUT.fill(project=assignment.project, sandbox=assignment.sandbox)

    async def emit(self, data: EventData, *, last_words: bool = False) -> bool:
        """Say an event, and wait until it is on the disk; what is large in it goes ahead as artifacts.

        Returns False for an event that is not said: a second end of the attempt, or one that can't be; then an error
        is said that names it. Raises `SpoolError`.
        """
        if data.terminal and self._spool.ended:
            return False
        aside: list[Record] = []
        ready = self._ready(data, aside)
        # All of it is appended without a pause, so that the order in the spool is the order of the calls.
        waiting = [self._spool.append(record) for record in aside]
        waiting.append(self._spool.append_event(lambda sequence: self._record(ready, sequence), last_words=last_words))
        await _all(waiting)
        return type(ready) is type(data)

    async def output(self, chunk: bytes) -> None:
        """Show terminal bytes, redacted by the caller. Raises `SpoolError`."""
        await self._spool.append(Record(Kind.OUTPUT, self._output_subject, str(new_uuid()), chunk))

    async def put_aside(self, content: bytes) -> ArtifactRef:
        """Keep text as an artifact, redacted by the caller, and return its reference. Raises `SpoolError`."""
        artifact = make_artifact(content, self._who.project, self._who.sandbox)
        await _all([self._spool.append(record) for record in artifact.records])
        return artifact.reference

    async def put_file_aside(self, file: IO[bytes], media_type: str) -> ArtifactRef:
        """Keep a file's content as an artifact, exactly as it is, a part of it at a time. Raises `SpoolError`."""
        pieces = Pieces(self._who.project, self._who.sandbox, media_type)
        waiting: list[asyncio.Future[None]] = []
        for record in pieces.cut(file):
            waiting.append(self._spool.append(record))
            if len(waiting) >= _PIECES_TOGETHER:
                await _all(waiting)
                waiting.clear()
        await _all(waiting)
        return pieces.reference()

    def _ready(self, data: EventData, aside: list[Record]) -> EventData:
        """The event as it may be said. One that can't be said becomes an error that names it, and harms nothing."""
        try:
            return self._fitting(data, aside)
        except _CANT_BE_SAID as error:
            if data.terminal:
                raise
            aside.clear()
            return AgentError(error=f"a {data.type} could not be said: {type(error).__name__}", phase="emit")

    def _fitting(self, data: EventData, aside: list[Record]) -> EventData:
        fields = self._clean(data)
        try:
            wide = self._cut(type(data), fields, WIDE, aside)
            self._record(wide, 1)
            return wide
        except ContractError:
            aside.clear()
            narrow = self._cut(type(data), fields, NARROW, aside)
            self._record(narrow, 1)
            return narrow

    def _clean(self, data: EventData) -> dict[str, Any]:
        """The fields without secrets and with sound strings."""
        closed = _closed_fields(type(data))
        return {
            name: value if name in closed else self.redactor.value(_sound(value, _DEEPEST))
            for name, value in data.model_dump().items()
        }

    def _cut(self, model: type[EventData], fields: dict[str, Any], room: Room, aside: list[Record]) -> EventData:
        def put_aside(content: bytes, media_type: str) -> dict[str, Any]:
            artifact = make_artifact(content, self._who.project, self._who.sandbox, media_type)
            aside.extend(artifact.records)
            return artifact.reference.model_dump()

        own = {name: value for name, value in fields.items() if name != "artifacts"}
        fitted = fit(own, room, put_aside)
        references = {**(fields.get("artifacts") or {}), **fitted.aside}
        return model.model_validate({**fitted.fields, "artifacts": references or None})

    def _record(self, data: EventData, sequence: int) -> Record:
        identity = new_uuid()
        event = wrap(
            data,
            data.type,
            source=self._who.source,
            sequence=sequence,
            project=self._who.project,
            subject=self._who.sandbox,
            time=self._clock(),
            id=identity,
            taskid=self._who.task,
            sandboxid=self._who.sandbox,
            traceparent=self._who.traceparent,
        )
        subject = event_subject(self._who.project, self._who.sandbox, data.type)
        return Record(Kind.EVENT, subject, str(identity), event.to_json(), sequence, _mark(data))


def _mark(data: EventData) -> Mark:
    if data.terminal:
        return Mark.TERMINAL
    return Mark.LAST_WORD if isinstance(data, AgentShutdown) else Mark.NONE


@cache
def _closed_fields(model: type[EventData]) -> set[str]:
    """The fields that can only have certain values: no secret can stand there, and none of them may be changed."""
    return {name for name, info in model.model_fields.items() if get_origin(info.annotation) is Literal}


def _sound(value: Any, deepest: int) -> Any:
    """The value with its strings made sound, and the keys of its objects too. Raises `RecursionError`."""
    if isinstance(value, str):
        return sound(value)
    if deepest == 0 and isinstance(value, dict | list | tuple):
        raise RecursionError
    if isinstance(value, dict):
        return {_sound(key, 1): _sound(item, deepest - 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_sound(item, deepest - 1) for item in value]
    return value


async def _all(waiting: Sequence[asyncio.Future[None]]) -> None:
    """Wait for all of them; if they fail, they fail alike."""
    for result in await asyncio.gather(*waiting, return_exceptions=True):
        if isinstance(result, BaseException):
            raise result
