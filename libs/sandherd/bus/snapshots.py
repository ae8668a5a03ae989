"""A stream in a file and back, with its consumers and how far they are: the broker's own snapshots (ADR-8)."""

import asyncio
import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from nats.aio.msg import Msg

from sandherd.bus.api_subjects import API
from sandherd.bus.connection import Bus
from sandherd.private_files import FILE

CHUNK: Final = 128 * 1024
SILENCE: Final = 30.0
"""The broker sends a piece, or takes one, within so many seconds; a whole stream may take as long as it takes."""
WHOLE: Final = 600.0
"""A stream that has all of its pieces is there again within so many seconds."""
_WELL: Final = frozenset({None, "204"})
_NO_PEERS: Final = 10005
"""The broker's code for a stream that it finds no servers for; see nats-server's errors.json."""


class SnapshotFailedError(Exception):
    """The broker would not give a stream, or not take one; the message says which and why."""


class NoRoomError(SnapshotFailedError):
    """No servers have room for the stream; after one was deleted, some seconds pass before they say that they have."""


async def save(bus: Bus, stream: str, path: Path) -> dict[str, Any]:
    """Write the stream into the file. Returns what `restore` has to be told of it beside the file, and its digest.

    Raises `SnapshotFailedError`, `OSError`, and nats-py's errors.
    """
    pieces: asyncio.Queue[Msg] = asyncio.Queue()
    inbox = bus.client.new_inbox()
    listening = await bus.client.subscribe(inbox, cb=pieces.put)
    try:
        told = {"deliver_subject": inbox, "no_consumers": False, "chunk_size": CHUNK}
        answer = await _asked(bus, f"{API}.STREAM.SNAPSHOT.{stream}", stream, told)
        digest = await _written(bus, stream, pieces, path)
    finally:
        await listening.unsubscribe()
    return {"config": answer["config"], "state": answer["state"], "sha256": digest}


async def _written(bus: Bus, stream: str, pieces: "asyncio.Queue[Msg]", path: Path) -> str:
    digest = hashlib.sha256()
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, FILE), "wb") as file:
        os.fchmod(file.fileno(), FILE)
        while True:
            piece = await _next(stream, pieces)
            status = (piece.headers or {}).get("Status")
            if status not in _WELL:
                raise SnapshotFailedError(f"stream {stream}: the broker ends its snapshot with {status}")
            if not piece.data:
                return digest.hexdigest()
            file.write(piece.data)
            digest.update(piece.data)
            # A few are on their way at once; the next comes when one is said to have come. The last asks for nothing.
            if piece.reply:
                await bus.client.publish(piece.reply, b"")


async def restore(bus: Bus, stream: str, path: Path, told: Mapping[str, Any]) -> None:
    """Make the stream of the file; there must be none of its name. `told` is what `save` returned.

    Raises `NoRoomError`, `SnapshotFailedError`, `OSError`, and nats-py's errors.
    """
    opening = {"config": told["config"], "state": told["state"]}
    answer = await _asked(bus, f"{API}.STREAM.RESTORE.{stream}", stream, opening)
    place = answer["deliver_subject"]
    with path.open("rb") as file:
        while piece := file.read(CHUNK):
            _unrefused(stream, (await bus.client.request(place, piece, timeout=SILENCE)).data)
    _unrefused(stream, (await bus.client.request(place, b"", timeout=WHOLE)).data)


async def _asked(bus: Bus, subject: str, stream: str, told: Mapping[str, Any]) -> dict[str, Any]:
    answer = await bus.client.request(subject, json.dumps(told).encode(), timeout=SILENCE)
    return _unrefused(stream, answer.data)


def _unrefused(stream: str, document: bytes) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(document) if document else {}
    if "error" in answer:
        kind = NoRoomError if answer["error"].get("err_code") == _NO_PEERS else SnapshotFailedError
        raise kind(f"stream {stream}: {answer['error'].get('description', answer['error'])}")
    return answer


async def _next(stream: str, pieces: "asyncio.Queue[Msg]") -> Msg:
    try:
        async with asyncio.timeout(SILENCE):
            return await pieces.get()
    except TimeoutError:
        raise SnapshotFailedError(f"stream {stream}: the broker has fallen silent") from None
