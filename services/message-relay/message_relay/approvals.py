"""The bucket of approvals: each is written over by compare-and-set, so that the first answer is the only one."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, TypeVar

import nats.errors
import nats.js.errors
from pydantic import ValidationError

from message_relay.asked import Asked, digest_of
from sandherd.bus.connection import Bus, full_jitter
from sandherd.telemetry import logs

_STREAM: Final = "KV_approvals"
_SUBJECT: Final = "$KV.approvals"
KEPT: Final = "86400s"
"""How long a decision is known, to tell whoever answers once more."""
_WRONG_SEQUENCE: Final = 10071
"""The broker's error `JSStreamWrongLastSequenceErrF`."""
_UNANSWERED: Final = (TimeoutError, nats.errors.Error, nats.js.errors.Error, OSError)
_log: Final = logs.get("approvals")

AnswerT = TypeVar("AnswerT")


@dataclass(frozen=True, slots=True)
class Held:
    """An approval as it was read or written, and the revision it has there."""

    asked: Asked
    revision: int


class Approvals:
    """All that was asked and is not forgotten. Waits for the broker as long as it takes."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus

    async def load(self, project: str, sandbox: str, approval_id: str) -> Held | None:
        """An approval, or None."""
        return await self.at(_subject_of(project, sandbox, approval_id))

    async def at(self, subject: str) -> Held | None:
        """The approval on a subject of the bucket, or None."""
        return await _until_answered(lambda: self._read(subject))

    async def write(self, asked: Asked, over: Held | None) -> Held | None:
        """Write it, over what was read or anew. None if another was first, or we were, and the broker did not say so.

        Once its decision is known to have been said, it is forgotten after a while.
        """
        subject = _subject_of(asked.project, asked.sandbox, asked.approval_id)
        headers = {"Nats-Expected-Last-Subject-Sequence": str(over.revision if over else 0)}
        if asked.said:
            headers["Nats-TTL"] = KEPT
        revision = await _until_answered(lambda: self._write(subject, asked, headers))
        return None if revision is None else Held(asked, revision)

    async def subjects(self) -> list[str]:
        """Where all of them are."""
        info = await _until_answered(lambda: self._bus.js.stream_info(_STREAM, subjects_filter=">"))
        return list(info.state.subjects or {})

    async def _read(self, subject: str) -> Held | None:
        try:
            last = await self._bus.js.get_last_msg(_STREAM, subject, direct=True)
            return Held(Asked.model_validate_json(last.data or b""), last.seq or 0)
        except nats.js.errors.NotFoundError:
            return None
        except ValidationError as error:
            _log.warning("an approval that another version wrote", subject=subject, faults=error.error_count())
            return None

    async def _write(self, subject: str, asked: Asked, headers: dict[str, str]) -> int | None:
        try:
            ack = await self._bus.js.publish(
                subject, asked.model_dump_json(exclude_none=True).encode(), headers=headers
            )
        except nats.js.errors.APIError as error:
            if error.err_code != _WRONG_SEQUENCE:
                raise
            return None
        return ack.seq


def _subject_of(project: str, sandbox: str, approval_id: str) -> str:
    return f"{_SUBJECT}.{project}.{sandbox}.{digest_of(approval_id)}"


async def _until_answered(ask: Callable[[], Awaitable[AnswerT]]) -> AnswerT:
    attempt = 0
    while True:
        try:
            return await ask()
        except _UNANSWERED as error:
            _log.warning("the approvals can't be reached yet", attempt=attempt, error=repr(error))
        await asyncio.sleep(full_jitter(attempt))
        attempt += 1
