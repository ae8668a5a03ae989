"""Reads replies to requests and publishes, and ends the wait for a reply at once if the connection is lost."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import cache
from typing import Any, Final, NamedTuple, TypeVar, cast

import nats.errors
from nats.aio.msg import Msg
from pydantic import BaseModel, ValidationError
from pydantic_core import from_json

from sandherd.bus.errors import (
    BusError,
    ConnectionLostError,
    LeaderlessError,
    PublishFailedError,
    PublishRefusedError,
    RefusedError,
    failure_of,
)
from sandherd.contracts.requests import Reply

T = TypeVar("T")


class CallLostError(Exception):
    """The connection was lost while a call waited for its reply."""


class PendingCalls:
    """The calls that wait for a reply over one connection. They are ended without an asyncio task for each call."""

    def __init__(self) -> None:
        self._scopes: set[asyncio.Timeout] = set()
        self.on_lost: Callable[[], None] = lambda: None
        """A function that is called when the connection is lost. `PublishWindow` ends its own waiting calls by it."""

    async def unless_lost(self, work: Awaitable[T]) -> T:
        """Return the result of `work`. Raises `CallLostError` as soon as the connection is lost."""
        scope = asyncio.timeout(None)
        try:
            async with scope:
                self._scopes.add(scope)
                return await work
        except TimeoutError as error:
            if scope.expired():
                raise CallLostError from error
            raise
        finally:
            self._scopes.discard(scope)

    async def acknowledgement(self, subject: str, sending: Awaitable[Msg]) -> "Acknowledgement":
        """The acknowledgement of the message that `sending` publishes. Raises the errors of `Bus.publish`."""
        try:
            return read_acknowledgement(subject, (await self.unless_lost(sending)).data)
        except PUBLISH_ERRORS as error:
            raise publish_error(subject, error) from error

    def end_all(self) -> None:
        """End all waiting calls with `CallLostError`, because the connection is lost."""
        scopes, self._scopes = self._scopes, set()
        now = asyncio.get_running_loop().time()
        for scope in scopes:
            scope.reschedule(now)
        self.on_lost()


PUBLISH_ERRORS: Final = (CallLostError, TimeoutError, nats.errors.Error, OSError, ValueError)
"""The errors of nats-py and `PendingCalls` when a message is published to a stream and no reply is received."""


def publish_error(subject: str, error: Exception) -> BusError:
    """The `BusError` for one of `PUBLISH_ERRORS`."""
    match error:
        case CallLostError():
            return ConnectionLostError(f"{subject}: the connection was lost")
        case nats.errors.MaxPayloadError() | nats.errors.BadSubjectError() | ValueError():
            return PublishRefusedError(f"{subject}: {error!r}")
        case nats.errors.NoRespondersError():
            return LeaderlessError(f"{subject}: no stream responds")
        case _:
            return PublishFailedError(f"{subject}: {error!r}")


class Acknowledgement(NamedTuple):
    """The acknowledgement of a stored message: its stream, its sequence number, and whether it was stored before."""

    stream: str
    seq: int
    duplicate: bool


def read_acknowledgement(subject: str, document: bytes) -> Acknowledgement:
    """Read the reply to a publish. Raises a subclass of `BusError`, by the error code, if the message was not stored.

    nats-py's JetStream client is not used, because importing it takes more CPU time than the publish of a CLI command.
    """
    try:
        reply: Any = from_json(document)
    except ValueError:
        reply = None
    if not isinstance(reply, dict):  # the message may be stored, so it is published again with the same id
        raise PublishFailedError(f"{subject}: the reply is not an acknowledgement")
    if "error" in reply:
        error: dict[str, Any] = reply["error"] if isinstance(reply["error"], dict) else {}
        code, description = _of_type(int, error.get("err_code")), _of_type(str, error.get("description"))
        raise failure_of(code, description)(f"{subject}: {description}")
    stream, seq = _of_type(str, reply.get("stream")), _of_type(int, reply.get("seq"))
    if stream is None or seq is None:
        raise PublishFailedError(f"{subject}: the reply is not an acknowledgement")
    return Acknowledgement(stream, seq, bool(reply.get("duplicate")))


def _of_type(expected: type[T], value: object) -> T | None:
    """The value if it has this type, else None."""
    return value if isinstance(value, expected) else None


ReplyT = TypeVar("ReplyT", bound=BaseModel)


def read_reply(document: bytes, content: type[ReplyT]) -> ReplyT:
    """The content of a reply. Raises `RefusedError` for a refusal and `BusError` for an invalid reply."""
    try:
        # A newer service may send unknown fields. In a request, a model may reject these; in a reply they are ignored.
        reply: Reply[ReplyT] = _reply_of(content).model_validate_json(document, extra="ignore")
    except ValidationError as error:
        raise BusError(f"invalid reply: {error.errors(include_input=False)[0]['msg']}") from None
    if reply.error is not None:
        raise RefusedError(reply.error)
    return cast("ReplyT", reply.ok)


def build_validator(content: type[BaseModel]) -> None:
    """Build the pydantic validator of such a reply now, instead of at the first reply."""
    _reply_of(content).model_rebuild()


@cache
def _reply_of(content: type[BaseModel]) -> type[Reply[Any]]:
    return Reply[content]  # type: ignore[valid-type]  # a model chosen at run time
