"""Replies to requests and publishes: reads them, and ends a wait at once if the connection is lost."""

import asyncio
import json
from collections.abc import Awaitable
from functools import cache
from typing import Any, NamedTuple, TypeVar, cast

from pydantic import BaseModel, ValidationError

from sandherd.bus.errors import BusError, PublishFailedError, RefusedError, failure_of
from sandherd.contracts.requests import Reply

T = TypeVar("T")


class CallLostError(Exception):
    """The connection was lost while waiting for a reply over it."""


class PendingCalls:
    """The calls that wait for a reply over one connection, without a task for each."""

    def __init__(self) -> None:
        self._scopes: set[asyncio.Timeout] = set()

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

    def lose(self) -> None:
        """End all waiting calls with `CallLostError`: the connection is lost."""
        scopes, self._scopes = self._scopes, set()
        now = asyncio.get_running_loop().time()
        for scope in scopes:
            scope.reschedule(now)


class Acknowledgement(NamedTuple):
    """A stream has stored a message: the stream, the message's sequence number in it, and whether it had it before."""

    stream: str
    seq: int
    duplicate: bool


def read_acknowledgement(subject: str, document: bytes) -> Acknowledgement:
    """The reply to a publish. Raises a `BusError` by its code if the message was not stored.

    nats-py reads the same, but its client of JetStream costs a command more CPU time than everything it sends.
    """
    try:
        found: Any = json.loads(document)
    except ValueError:
        found = None
    if not isinstance(found, dict):  # the message may be stored, so it is published again with the same id
        raise PublishFailedError(f"{subject}: the reply is not an acknowledgement")
    if "error" in found:
        error: dict[str, Any] = found["error"]
        description = error.get("description")
        raise failure_of(error.get("err_code"), description)(f"{subject}: {description}")
    if "stream" not in found or "seq" not in found:
        raise PublishFailedError(f"{subject}: the reply is not an acknowledgement")
    return Acknowledgement(found["stream"], found["seq"], bool(found.get("duplicate")))


ReplyT = TypeVar("ReplyT", bound=BaseModel)


def read_reply(document: bytes, content: type[ReplyT]) -> ReplyT:
    """The content of a reply. Raises `RefusedError` for a refusal and `BusError` for an invalid reply."""
    try:
        # A service one version newer may send unknown fields, also in models that are strict in a request.
        reply: Reply[ReplyT] = _reply_of(content).model_validate_json(document, extra="ignore")
    except ValidationError as error:
        raise BusError(f"invalid reply: {error.errors(include_input=False)[0]['msg']}") from None
    if reply.error is not None:
        raise RefusedError(reply.error)
    return cast("ReplyT", reply.ok)


def build_validator(content: type[BaseModel]) -> None:
    """Build what reads such a reply now, and not with the first one."""
    _reply_of(content).model_rebuild()


@cache
def _reply_of(content: type[BaseModel]) -> type[Reply[Any]]:
    return Reply[content]  # type: ignore[valid-type]  # a model chosen at run time
