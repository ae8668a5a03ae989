"""Saving a stream to a file and restoring it, with its consumers and their state: the broker's snapshots (ADR-8)."""

import asyncio
import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import nats.errors
from nats.aio.msg import Msg
from nats.js.errors import NotFoundError, ServiceUnavailableError

from sandherd.bus.api_subjects import API
from sandherd.bus.connection import Bus
from sandherd.contracts.streams import STREAMS
from sandherd.private_files import FILE

CHUNK: Final = 128 * 1024
SILENCE: Final = 30.0
"""Timeout in seconds for each chunk that the broker sends or receives; a whole stream has none."""
WHOLE: Final = 600.0
"""Timeout in seconds for the broker to restore a stream after it has received all chunks."""
_WELL: Final = frozenset({None, "204"})
_START_SECONDS: Final = 15.0
_INTERVAL: Final = 0.5
_RETRY: Final = 0.05
_NO_PEERS: Final = 10005
"""The broker's error code for a stream that no servers can hold; see nats-server's errors.json."""


class SnapshotFailedError(Exception):
    """The broker failed to save or to restore a stream; the message names it and the reason."""


class NoSpaceError(SnapshotFailedError):
    """No server has space for the stream; the space of a deleted stream is reported as free only seconds later."""


async def save(bus: Bus, stream: str, path: Path) -> dict[str, Any]:
    """Write the stream to the file. Returns the configuration and state that `restore` needs, and the file's digest.

    Raises `SnapshotFailedError`, `OSError`, and nats-py's errors.
    """
    pieces: asyncio.Queue[Msg] = asyncio.Queue()
    inbox = bus.client.new_inbox()
    listening = await bus.client.subscribe(inbox, cb=pieces.put)
    try:
        request = {"deliver_subject": inbox, "no_consumers": False, "chunk_size": CHUNK}
        answer = await _request(bus, f"{API}.STREAM.SNAPSHOT.{stream}", stream, request)
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
                raise SnapshotFailedError(f"stream {stream}: the broker ended its snapshot with status {status}")
            if not piece.data:
                return digest.hexdigest()
            file.write(piece.data)
            digest.update(piece.data)
            # Flow control: the broker sends the next chunk when one is acknowledged; the last has no reply subject.
            if piece.reply:
                await bus.client.publish(piece.reply, b"")


async def restore(bus: Bus, stream: str, path: Path, saved: Mapping[str, Any]) -> None:
    """Create the stream from the file; none of its name may exist. `saved` is what `save` returned.

    Raises `NoSpaceError`, `SnapshotFailedError`, `OSError`, and nats-py's errors.
    """
    opening = {"config": saved["config"], "state": saved["state"]}
    answer = await _request(bus, f"{API}.STREAM.RESTORE.{stream}", stream, opening)
    place = answer["deliver_subject"]
    with path.open("rb") as file:
        while piece := file.read(CHUNK):
            _unrefused(stream, await _sent(bus, place, piece, SILENCE))
    _unrefused(stream, await _sent(bus, place, b"", WHOLE))


async def _sent(bus: Bus, place: str, piece: bytes, timeout: float) -> bytes:
    """Send a chunk, and return the reply. Raises nats-py's errors, after 15 s `NoRespondersError`.

    Without a responder it reached no server: in a cluster the one that is connected to may learn of the new subject of
    another one only after the reply that names it. So it can be sent again.
    """
    deadline = asyncio.get_running_loop().time() + _START_SECONDS
    while True:
        try:
            return (await bus.client.request(place, piece, timeout=timeout)).data
        except nats.errors.NoRespondersError:
            if asyncio.get_running_loop().time() > deadline:
                raise
        await asyncio.sleep(_RETRY)


async def _request(bus: Bus, subject: str, stream: str, request: Mapping[str, Any]) -> dict[str, Any]:
    answer = await bus.client.request(subject, json.dumps(request).encode(), timeout=SILENCE)
    return _unrefused(stream, answer.data)


def _unrefused(stream: str, document: bytes) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(document) if document else {}
    if "error" in answer:
        kind = NoSpaceError if answer["error"].get("err_code") == _NO_PEERS else SnapshotFailedError
        raise kind(f"stream {stream}: {answer['error'].get('description', answer['error'])}")
    return answer


async def _next(stream: str, pieces: "asyncio.Queue[Msg]") -> Msg:
    try:
        async with asyncio.timeout(SILENCE):
            return await pieces.get()
    except TimeoutError:
        raise SnapshotFailedError(f"stream {stream}: no chunk from the broker for {SILENCE:g} s") from None


async def wait_for_streams(bus: Bus) -> None:
    """Wait until the broker serves requests about streams, which a cluster that has just started does not yet.

    Raises `nats.errors.NoRespondersError` or `ServiceUnavailableError` after 15 s.
    """
    deadline = asyncio.get_running_loop().time() + _START_SECONDS
    while True:
        try:
            await bus.js.stream_info(STREAMS[0].name)
        except NotFoundError:
            return
        except (nats.errors.NoRespondersError, ServiceUnavailableError):
            if asyncio.get_running_loop().time() > deadline:
                raise
        else:
            return
        await asyncio.sleep(_INTERVAL)
