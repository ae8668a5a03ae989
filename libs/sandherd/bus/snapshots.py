"""Saves a stream to a file and restores it, with its consumers and their state, by the broker's snapshots (ADR-8)."""

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

CHUNK_BYTES: Final = 128 * 1024
CHUNK_TIMEOUT: Final = 30.0
"""Timeout in seconds for each chunk that the broker sends or receives. There is no timeout for the whole stream."""
RESTORE_TIMEOUT: Final = 600.0
"""Timeout in seconds for the broker to restore a stream after it has received all chunks."""
_SUCCESS: Final = frozenset({None, "204"})
_START_SECONDS: Final = 15.0
_CHECK_SECONDS: Final = 0.5
_RETRY_SECONDS: Final = 0.05
_NO_PEERS: Final = 10005
"""The broker's error code for a stream that no servers can store; see nats-server's errors.json."""


class SnapshotFailedError(Exception):
    """The broker failed to save or to restore a stream. The message names the stream and the reason."""


class NoSpaceError(SnapshotFailedError):
    """No server has space for the stream. The space of a deleted stream counts as free only seconds later."""


async def save(bus: Bus, stream: str, path: Path) -> dict[str, Any]:
    """Write the stream to the file. Returns the configuration and state that `restore` needs, and the file's digest.

    Raises `SnapshotFailedError`, `OSError`, and nats-py's errors.
    """
    chunks: asyncio.Queue[Msg] = asyncio.Queue()
    inbox = bus.client.new_inbox()
    subscription = await bus.client.subscribe(inbox, cb=chunks.put)
    try:
        request = {"deliver_subject": inbox, "no_consumers": False, "chunk_size": CHUNK_BYTES}
        reply = await _request(bus, f"{API}.STREAM.SNAPSHOT.{stream}", stream, request)
        digest = await _write_chunks(bus, stream, chunks, path)
    finally:
        await subscription.unsubscribe()
    return {"config": reply["config"], "state": reply["state"], "sha256": digest}


async def _write_chunks(bus: Bus, stream: str, chunks: "asyncio.Queue[Msg]", path: Path) -> str:
    digest = hashlib.sha256()
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, FILE), "wb") as file:
        os.fchmod(file.fileno(), FILE)
        while True:
            chunk = await _next_chunk(stream, chunks)
            status = (chunk.headers or {}).get("Status")
            if status not in _SUCCESS:
                raise SnapshotFailedError(f"stream {stream}: the broker ended its snapshot with status {status}")
            if not chunk.data:
                return digest.hexdigest()
            file.write(chunk.data)
            digest.update(chunk.data)
            # Flow control: the broker sends a chunk after the previous one was acknowledged. The last chunk has no
            # reply subject.
            if chunk.reply:
                await bus.client.publish(chunk.reply, b"")


async def restore(bus: Bus, stream: str, path: Path, saved: Mapping[str, Any]) -> None:
    """Create the stream from the file. No stream of this name may exist. `saved` is the value that `save` returned.

    Raises `NoSpaceError`, `SnapshotFailedError`, `OSError`, and nats-py's errors.
    """
    request = {"config": saved["config"], "state": saved["state"]}
    reply = await _request(bus, f"{API}.STREAM.RESTORE.{stream}", stream, request)
    subject = reply["deliver_subject"]
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            _checked_reply(stream, await _send_chunk(bus, subject, chunk, CHUNK_TIMEOUT))
    _checked_reply(stream, await _send_chunk(bus, subject, b"", RESTORE_TIMEOUT))


async def _send_chunk(bus: Bus, subject: str, chunk: bytes, timeout: float) -> bytes:
    """Send a chunk, and return the reply. Raises nats-py's errors; `NoRespondersError` if there is none for 15 s.

    In a cluster the connected server may learn of the new subject on another server only after the reply that names it.
    Until then there is no responder. The chunk has reached no server, so it is sent again.
    """
    deadline = asyncio.get_running_loop().time() + _START_SECONDS
    while True:
        try:
            return (await bus.client.request(subject, chunk, timeout=timeout)).data
        except nats.errors.NoRespondersError:
            if asyncio.get_running_loop().time() > deadline:
                raise
        await asyncio.sleep(_RETRY_SECONDS)


async def _request(bus: Bus, subject: str, stream: str, request: Mapping[str, Any]) -> dict[str, Any]:
    reply = await bus.client.request(subject, json.dumps(request).encode(), timeout=CHUNK_TIMEOUT)
    return _checked_reply(stream, reply.data)


def _checked_reply(stream: str, document: bytes) -> dict[str, Any]:
    reply: dict[str, Any] = json.loads(document) if document else {}
    if "error" in reply:
        kind = NoSpaceError if reply["error"].get("err_code") == _NO_PEERS else SnapshotFailedError
        raise kind(f"stream {stream}: {reply['error'].get('description', reply['error'])}")
    return reply


async def _next_chunk(stream: str, chunks: "asyncio.Queue[Msg]") -> Msg:
    try:
        async with asyncio.timeout(CHUNK_TIMEOUT):
            return await chunks.get()
    except TimeoutError:
        raise SnapshotFailedError(f"stream {stream}: no chunk from the broker for {CHUNK_TIMEOUT:g} s") from None


async def wait_for_streams(bus: Bus) -> None:
    """Wait until the broker serves requests about streams. A cluster that has just started does not.

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
        await asyncio.sleep(_CHECK_SECONDS)
