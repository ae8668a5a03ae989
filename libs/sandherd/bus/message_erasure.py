"""Deleting a message so that its bytes are gone from the broker's files, not only from its stream."""

import json
from typing import Final

import nats.js.errors

from sandherd.bus.api_subjects import API
from sandherd.bus.connection import Bus

_GONE: Final = frozenset({10037, 10057})
"""The broker's errors `JSNoMessageFoundErr` and `JSStreamMsgDeleteFailedF` for a sequence that is not there."""


async def erase(bus: Bus, stream: str, sequence: int) -> None:
    """Delete a message and have the broker write random bytes over it; one that is gone already stays gone.

    Raises nats-py's errors.
    """
    told = json.dumps({"seq": sequence, "no_erase": False}).encode()
    reply = json.loads(await bus.request(f"{API}.STREAM.MSG.DELETE.{stream}", told, timeout=5))
    error = reply.get("error")
    if error and error.get("err_code") not in _GONE:
        raise nats.js.errors.APIError.from_error(error)
