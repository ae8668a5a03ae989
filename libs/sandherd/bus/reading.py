"""Reading what was last written, also where several servers keep it.

A direct read is the fastest, and may be answered by any server that keeps the stream. One that is a moment behind gives
what was there before, or says that there is nothing: of 1,500 reads right after a write, 31 did. Whoever decides by
what is read asks the leader instead, where there is more than one server.
"""

from collections.abc import Awaitable
from typing import Final

from nats.js import JetStreamContext
from nats.js.api import RawStreamMsg
from nats.js.errors import NoStreamResponseError, NotFoundError
from nats.js.kv import KeyValue

from sandherd.bus.connection import Bus

_NO_STREAM: Final = 10059
"""The broker's error `JSStreamNotFoundErr`."""


def bucket_of(js: JetStreamContext, name: str) -> KeyValue:
    """A bucket that always asks its leader. Whether there is one, and somebody leads it, shows when it is used."""
    return KeyValue(name=name, stream=f"KV_{name}", pre=f"$KV.{name}.", js=js, direct=False)


async def last_on(bus: Bus, stream: str, subject: str) -> RawStreamMsg:
    """The last message on a subject. Raises `nats.js.errors.NotFoundError` if there is none."""
    if not bus.clustered:
        return await bus.js.get_last_msg(stream, subject, direct=True)
    return await _of_leader(bus.js.get_last_msg(stream, subject))


async def next_on(bus: Bus, stream: str, subject: str, first: int) -> RawStreamMsg:
    """The first message on a subject that is not before a place. Raises `nats.js.errors.NotFoundError` likewise."""
    if not bus.clustered:
        return await bus.js.get_msg(stream, first, subject=subject, next=True, direct=True)
    return await _of_leader(bus.js.get_msg(stream, first, subject=subject, next=True))


async def next_unchanging_on(bus: Bus, stream: str, subject: str, first: int) -> RawStreamMsg:
    """The same on a subject that is only ever added to: what is there, any server says rightly.

    Only that there is nothing is believed of the leader alone.
    """
    try:
        return await bus.js.get_msg(stream, first, subject=subject, next=True, direct=True)
    except NotFoundError:
        if not bus.clustered:
            raise
        return await next_on(bus, stream, subject, first)


async def _of_leader(asking: Awaitable[RawStreamMsg]) -> RawStreamMsg:
    """A stream that is not there answers no direct read; the leader's answer must not mean that it has no message."""
    try:
        return await asking
    except NotFoundError as error:
        if error.err_code == _NO_STREAM:
            raise NoStreamResponseError from error
        raise
