"""Erases a message: it is removed from its stream, and its bytes are overwritten in the broker's files."""

import json
from typing import Final

import nats.js.errors

from sandherd.bus.api_subjects import API
from sandherd.bus.connection import Bus

_NOT_FOUND: Final = frozenset({10037, 10057})
"""The broker's errors `JSNoMessageFoundErr` and `JSStreamMsgDeleteFailedF` for a sequence that does not exist."""


async def erase(bus: Bus, stream: str, sequence: int) -> None:
    """Delete a message and have the broker overwrite it with random bytes. A missing message is not an error.

    Raises nats-py's errors.
    """
    request = json.dumps({"seq": sequence, "no_erase": False}).encode()
    reply = json.loads(await bus.request(f"{API}.STREAM.MSG.DELETE.{stream}", request, timeout=5))
    error = reply.get("error")
    if error and error.get("err_code") not in _NOT_FOUND:
        raise nats.js.errors.APIError.from_error(error)
