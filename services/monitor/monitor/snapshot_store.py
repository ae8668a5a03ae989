"""Stores the snapshot in its bucket: pieces first, then the manifest, so that a crash leaves a complete snapshot."""

from collections.abc import AsyncIterator
from typing import Final

import nats.errors
import nats.js.errors
from pydantic import ValidationError

from monitor.herd import Herd
from monitor.rule_set import RuleSet
from monitor.snapshot import Manifest, SnapshotError, pack, unpack
from sandherd.bus.connection import Bus, PublishFailedError
from sandherd.bus.kv import last_message
from sandherd.contracts.names import new_uuid
from sandherd.telemetry import logs

BUCKET: Final = "monitor"
_STREAM: Final = f"KV_{BUCKET}"
_PREFIX: Final = f"$KV.{BUCKET}"
_MANIFEST: Final = f"{_PREFIX}.manifest"
_DELETE_HEADERS: Final = {"KV-Operation": "DEL", "Nats-TTL": "60s"}
"""Headers that empty a key, with a delete marker that expires."""
_log: Final = logs.get("snapshot_store")


class SnapshotStore:
    """Saves and restores the herd. Two sets of pieces alternate, so that the current one is not overwritten."""

    def __init__(self, bus: Bus, rules: RuleSet) -> None:
        self._bus = bus
        self._rules = rules
        self._revision = 0
        self._last: Manifest | None = None
        self.position = 0
        """The stream sequence of the last event in the snapshot."""

    async def restore(self) -> Herd:
        """The herd as it was last saved; an empty one, with a warning in the log, if there is no usable snapshot.

        Raises nats-py's errors while the bucket is unavailable.
        """
        try:
            manifest = await self._manifest()
            if manifest is None:
                return Herd(rules=self._rules)
            pieces = [piece async for piece in self._pieces(manifest)]
            herd = unpack(manifest, pieces, self._rules, _log_dropped)
        except (SnapshotError, ValidationError, nats.js.errors.NotFoundError) as error:
            _log.warning("snapshot unusable, reading the stream from its first event", error=str(error))
            return Herd(rules=self._rules)
        self._last = manifest
        self.position = manifest.position
        _log.info("snapshot restored", position=herd.position, sandboxes=len(herd.live))
        return herd

    async def save(self, herd: Herd, fence: int) -> None:
        """Store the herd as it is now. A failure is logged; the next save makes up for it."""
        manifest, pieces = pack(herd, self._next_generation(fence))
        try:
            for number, piece in enumerate(pieces):
                await self._publish(_piece(manifest.generation, number), piece)
            await self._publish_manifest(manifest)
            await self._clear(self._last, manifest)
        except (TimeoutError, PublishFailedError, nats.js.errors.Error, nats.errors.Error) as error:
            _log.warning("snapshot not saved", error=repr(error))
            return
        self._last = manifest
        self.position = manifest.position

    async def _manifest(self) -> Manifest | None:
        try:
            last = await last_message(self._bus, _STREAM, _MANIFEST)
        except nats.js.errors.NotFoundError:
            return None
        self._revision = last.seq or 0
        return Manifest.model_validate_json(last.data or b"")

    async def _pieces(self, manifest: Manifest) -> AsyncIterator[bytes]:
        for number in range(manifest.pieces):
            last = await last_message(self._bus, _STREAM, _piece(manifest.generation, number))
            yield last.data or b""

    def _next_generation(self, fence: int) -> str:
        last = self._last.generation if self._last else ""
        return f"{fence}-b" if last == f"{fence}-a" else f"{fence}-a"

    async def _publish(self, subject: str, payload: bytes) -> None:
        await self._bus.publish(subject, payload, msg_id=str(new_uuid()))

    async def _publish_manifest(self, manifest: Manifest) -> None:
        """Only over the revision that was read: a holder that was paused must not undo what its successor stored."""
        payload = manifest.model_dump_json().encode()
        headers = {"Nats-Expected-Last-Subject-Sequence": str(self._revision)}
        ack = await self._bus.publish(_MANIFEST, payload, msg_id=str(new_uuid()), headers=headers)
        self._revision = ack.seq

    async def _clear(self, before: Manifest | None, now: Manifest) -> None:
        """Empty the pieces of a previous holder; our own two sets are overwritten in turn."""
        if before is None or before.generation.partition("-")[0] == now.generation.partition("-")[0]:
            return
        for number in range(before.pieces):
            subject = _piece(before.generation, number)
            await self._bus.publish(subject, b"", msg_id=str(new_uuid()), headers=_DELETE_HEADERS)


def _piece(generation: str, number: int) -> str:
    return f"{_PREFIX}.piece.{generation}.{number}"


def _log_dropped(rule: str, count: int) -> None:
    _log.warning("rule's part of the snapshot dropped", rule=rule, sandboxes=count)
