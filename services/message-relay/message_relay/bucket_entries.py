"""Reads an entry of a bucket, and writes it by compare-and-set. Retries while the broker is unavailable."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

import nats.js.errors
from pydantic import BaseModel, ValidationError

from message_relay.broker_retries import ReplyT, until_reply
from sandherd.bus.connection import Bus
from sandherd.bus.errors import WRONG_LAST_SEQUENCE, StreamFullError, failure_of
from sandherd.bus.kv import last_message, revision_headers
from sandherd.telemetry import logs

_log: Final = logs.get("bucket_entries")

ModelT = TypeVar("ModelT", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class BucketEntry(Generic[ModelT]):
    """An entry as it was read: its value, or None if the value is invalid for the model, and its revision."""

    value: ModelT | None
    revision: int


async def read_entry(bus: Bus, bucket: str, subject: str, model: type[ModelT]) -> BucketEntry[ModelT] | None:
    """The entry of a bucket on this subject, or None. Retries without limit while the broker is unavailable."""
    return await until_available(bucket, lambda: _read_once(bus, bucket, subject, model))


async def _read_once(bus: Bus, bucket: str, subject: str, model: type[ModelT]) -> BucketEntry[ModelT] | None:
    try:
        last = await last_message(bus, f"KV_{bucket}", subject)
    except nats.js.errors.NotFoundError:
        return None
    try:
        return BucketEntry(model.model_validate_json(last.data or b""), last.seq or 0)
    except ValidationError as error:
        if last.data:
            _log.warning("invalid bucket entry ignored", subject=subject, faults=error.error_count())
        return BucketEntry(None, last.seq or 0)


async def write_entry(
    bus: Bus, bucket: str, subject: str, payload: bytes, *, over: int, ttl: str | None = None, while_full: bool = True
) -> int | None:
    """Write an entry if its revision is still `over`; 0 means that there is no entry. Returns the new revision.

    Returns None if the entry has another revision. That is also the case if this write was stored, but its
    acknowledgement was lost. Without `while_full`, raises `StreamFullError` if the bucket is full. Every other failure
    is retried without limit.
    """
    headers = revision_headers(over, ttl)

    async def publish() -> int | None:
        try:
            return (await bus.js.publish(subject, payload, headers=headers)).seq
        except nats.js.errors.APIError as error:
            if error.err_code == WRONG_LAST_SEQUENCE:
                return None
            if not while_full and failure_of(error.err_code, error.description) is StreamFullError:
                raise StreamFullError(f"{subject}: {error.description}") from error
            raise

    return await until_available(bucket, publish)


async def until_available(bucket: str, request: Callable[[], Awaitable[ReplyT]]) -> ReplyT:
    """Send a request for a bucket, and repeat it until there is a reply. Returns its result."""

    def log_failure(attempt: int, error: Exception) -> None:
        _log.warning("bucket unavailable, retrying", bucket=bucket, attempt=attempt, error=repr(error))

    return await until_reply(request, log_failure)
