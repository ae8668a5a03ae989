"""The bucket of approvals: each is written over by compare-and-set, so that the first answer is the only one.

Beside them stand the questions: for each, which approval asked it last. It leads the next attempt, which asks the same,
to the one before.
"""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

import nats.errors
import nats.js.errors
from pydantic import BaseModel, ValidationError

from message_relay.asked import Asked, Asker, Ref, digest_of
from sandherd.bus.connection import Bus, full_jitter
from sandherd.bus.reading import last_on
from sandherd.telemetry import logs

_STREAM: Final = "KV_approvals"
_SUBJECT: Final = "$KV.approvals"
_ALL: Final = f"{_SUBJECT}.*.*.*"
KEPT: Final = "86400s"
"""How long a decision is known, to tell whoever answers once more."""
_WRONG_SEQUENCE: Final = 10071
"""The broker's error `JSStreamWrongLastSequenceErrF`."""
_UNANSWERED: Final = (TimeoutError, nats.errors.Error, nats.js.errors.Error, OSError)
_log: Final = logs.get("approvals")

AnswerT = TypeVar("AnswerT")
ModelT = TypeVar("ModelT", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class _Found(Generic[ModelT]):
    value: ModelT
    revision: int


@dataclass(frozen=True, slots=True)
class Held:
    """An approval as it was read or written, and the revision it has there."""

    asked: Asked
    revision: int


@dataclass(frozen=True, slots=True)
class Led:
    """Which approval asked a question last, and the revision at which that stands; 0 if nobody has."""

    asker: Asker | None
    revision: int


class Approvals:
    """All that was asked and is not forgotten. Waits for the broker as long as it takes."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._open: defaultdict[tuple[str, str], set[str]] = defaultdict(set)

    def open_in(self, project: str, sandbox: str) -> int:
        """How many approvals of this sandbox wait for an answer, by what was last read or written here."""
        return len(self._open.get((project, sandbox), ()))

    def _note(self, subject: str, asked: Asked) -> None:
        key = asked.project, asked.sandbox
        if asked.decision is None:
            self._open[key].add(subject)
        elif key in self._open:
            self._open[key].discard(subject)
            if not self._open[key]:
                del self._open[key]

    async def load(self, project: str, sandbox: str, approval_id: str) -> Held | None:
        """An approval, or None."""
        return await self.at(_subject_of(project, sandbox, approval_id))

    async def at(self, subject: str) -> Held | None:
        """The approval on a subject of the bucket, or None."""
        found = await self._read(subject, Asked)
        if found is None:
            return None
        self._note(subject, found.value)
        return Held(found.value, found.revision)

    async def latest(self, project: str, ref: Ref, before: Ref | None = None) -> Held | None:
        """The approval that has taken the place of this one, or itself if none has; or the last before that one."""
        held = await self.load(project, ref.sandbox, ref.approval_id)
        while held is not None and held.asked.next is not None and held.asked.next != before:
            held = await self.load(project, held.asked.next.sandbox, held.asked.next.approval_id)
        return held

    async def write(self, asked: Asked, over: Held | None) -> Held | None:
        """Write it, over what was read or anew. None if another was first, or we were, and the broker did not say so.

        Once its decision is known to have been said, and is of no further use, it is forgotten after a while.
        """
        subject = _subject_of(asked.project, asked.sandbox, asked.approval_id)
        passing = asked.said and not asked.waits
        revision = await self._write(subject, asked, over.revision if over else 0, passing=passing)
        if revision is None:
            return None
        self._note(subject, asked)
        return Held(asked, revision)

    async def subjects(self) -> list[str]:
        """Where all of them are."""
        info = await _until_answered(lambda: self._bus.js.stream_info(_STREAM, subjects_filter=_ALL))
        return list(info.state.subjects or {})

    async def asker(self, asked: Asked) -> Led:
        """Who has asked the same question last."""
        found = await self._read(_question_subject(asked), Asker)
        return Led(None, 0) if found is None else Led(found.value, found.revision)

    async def lead(self, asked: Asked, over: Led) -> bool:
        """From now on it is the one that has asked its question last. False if another was first."""
        done = not asked.waits
        asker = Asker(sandbox=asked.sandbox, approval_id=asked.approval_id, attempt=asked.attempt, over=done)
        return await self._write(_question_subject(asked), asker, over.revision, passing=done) is not None

    async def let_go(self, asked: Asked) -> None:
        """Forget after a while that it has asked its question: nothing of it is of use any more."""
        if asked.question is None or asked.next is not None:
            return
        led = await self.asker(asked)
        if led.asker is not None and led.asker.ref == asked.ref and not led.asker.over:
            over = led.asker.model_copy(update={"over": True})
            await self._write(_question_subject(asked), over, led.revision, passing=True)

    async def _read(self, subject: str, model: type[ModelT]) -> _Found[ModelT] | None:
        return await _until_answered(lambda: self._last(subject, model))

    async def _last(self, subject: str, model: type[ModelT]) -> _Found[ModelT] | None:
        try:
            last = await last_on(self._bus, _STREAM, subject)
            return _Found(model.model_validate_json(last.data or b""), last.seq or 0)
        except nats.js.errors.NotFoundError:
            return None
        except ValidationError as error:
            _log.warning("an approval that another version wrote", subject=subject, faults=error.error_count())
            return None

    async def _write(self, subject: str, value: BaseModel, over: int, *, passing: bool) -> int | None:
        headers = {"Nats-Expected-Last-Subject-Sequence": str(over)} | ({"Nats-TTL": KEPT} if passing else {})
        return await _until_answered(lambda: self._publish(subject, value, headers))

    async def _publish(self, subject: str, value: BaseModel, headers: dict[str, str]) -> int | None:
        try:
            ack = await self._bus.js.publish(
                subject, value.model_dump_json(exclude_none=True).encode(), headers=headers
            )
        except nats.js.errors.APIError as error:
            if error.err_code != _WRONG_SEQUENCE:
                raise
            return None
        return ack.seq


def _subject_of(project: str, sandbox: str, approval_id: str) -> str:
    return f"{_SUBJECT}.{project}.{sandbox}.{digest_of(approval_id)}"


def _question_subject(asked: Asked) -> str:
    return f"{_SUBJECT}.{asked.project}.{asked.task}.question.{asked.question}"


async def _until_answered(ask: Callable[[], Awaitable[AnswerT]]) -> AnswerT:
    attempt = 0
    while True:
        try:
            return await ask()
        except _UNANSWERED as error:
            _log.warning("the approvals can't be reached yet", attempt=attempt, error=repr(error))
        await asyncio.sleep(full_jitter(attempt))
        attempt += 1
