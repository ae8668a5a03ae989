"""The snapshot in its bucket: pieces first, then the manifest that names them, so that a crash leaves a whole one."""

from collections.abc import AsyncIterator
from typing import Final

import nats.errors
import nats.js.errors
from pydantic import ValidationError

from monitor.herd import Herd
from monitor.snapshot import Manifest, SnapshotError, pack, unpack
from sandherd.bus.connection import Bus, PublishFailedError
from sandherd.bus.reading import last_on
from sandherd.contracts.names import new_uuid
from sandherd.telemetry import logs

BUCKET: Final = "monitor"
_STREAM: Final = f"KV_{BUCKET}"
_PREFIX: Final = f"$KV.{BUCKET}"
_MANIFEST: Final = f"{_PREFIX}.manifest"
_GONE: Final = {"KV-Operation": "DEL", "Nats-TTL": "60s"}
"""Empties a key, and leaves no marker for ever."""
_log: Final = logs.get("snapshot")


class Keeping:
    """Saves and restores the herd. Two sets of pieces take turns, so that the one in use is never written over."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._revision = 0
        self._last: Manifest | None = None
        self.position = 0
        """The last event that is in the snapshot."""

    async def restore(self) -> Herd:
        """The herd as it was last saved; an empty one, said in the log, if there is none that can be used.

        Raises nats-py's errors while nobody answers for the bucket.
        """
        try:
            manifest = await self._manifest()
            if manifest is None:
                return Herd()
            herd = unpack(manifest, [piece async for piece in self._pieces(manifest)])
        except (SnapshotError, ValidationError, nats.js.errors.NotFoundError) as error:
            _log.warning("the snapshot can't be used; the stream is read from its first event", error=str(error))
            return Herd()
        self._last = manifest
        self.position = manifest.position
        _log.info("snapshot restored", position=herd.position, sandboxes=len(herd.live))
        return herd

    async def save(self, herd: Herd, fence: int) -> None:
        """Keep the herd as it is at this moment. If it can't be done now, that is said, and the next time will do."""
        manifest, pieces = pack(herd, self._next_generation(fence))
        try:
            for number, piece in enumerate(pieces):
                await self._put(_piece(manifest.generation, number), piece)
            await self._put_manifest(manifest)
            await self._clear(self._last, manifest)
        except (TimeoutError, PublishFailedError, nats.js.errors.Error, nats.errors.Error) as error:
            _log.warning("no snapshot this time", error=repr(error))
            return
        self._last = manifest
        self.position = manifest.position

    async def _manifest(self) -> Manifest | None:
        try:
            last = await last_on(self._bus, _STREAM, _MANIFEST)
        except nats.js.errors.NotFoundError:
            return None
        self._revision = last.seq or 0
        return Manifest.model_validate_json(last.data or b"")

    async def _pieces(self, manifest: Manifest) -> AsyncIterator[bytes]:
        for number in range(manifest.pieces):
            last = await last_on(self._bus, _STREAM, _piece(manifest.generation, number))
            yield last.data or b""

    def _next_generation(self, fence: int) -> str:
        last = self._last.generation if self._last else ""
        return f"{fence}-b" if last == f"{fence}-a" else f"{fence}-a"

    async def _put(self, subject: str, payload: bytes) -> None:
        await self._bus.publish(subject, payload, msg_id=str(new_uuid()))

    async def _put_manifest(self, manifest: Manifest) -> None:
        """Only over the one that was read: a holder that was paused must not undo what its successor kept."""
        payload = manifest.model_dump_json().encode()
        headers = {"Nats-Expected-Last-Subject-Sequence": str(self._revision)}
        ack = await self._bus.publish(_MANIFEST, payload, msg_id=str(new_uuid()), headers=headers)
        self._revision = ack.seq

    async def _clear(self, before: Manifest | None, now: Manifest) -> None:
        """Empty the pieces that a holder before us left behind; our own two sets are written over in turn."""
        if before is None or before.generation.partition("-")[0] == now.generation.partition("-")[0]:
            return
        for number in range(before.pieces):
            subject = _piece(before.generation, number)
            await self._bus.publish(subject, b"", msg_id=str(new_uuid()), headers=_GONE)


def _piece(generation: str, number: int) -> str:
    return f"{_PREFIX}.piece.{generation}.{number}"
