"""Stores snapshots in their bucket: pieces first, then the manifest, so that a crash leaves a complete snapshot."""

import asyncio
import re
import time
from collections.abc import AsyncIterator, Iterable
from typing import Final

import nats.errors
import nats.js.errors
from nats.js.api import RawStreamMsg
from pydantic import ValidationError

from monitor.herd import Herd
from monitor.partition_plan import UNDIVIDED, PartitionId
from monitor.rule_set import RuleSet
from monitor.snapshot import Manifest, SnapshotError, merge_herds, pack, snapshot_sets, unneeded_snapshots, unpack
from sandherd.bus.connection import Bus, PublishFailedError
from sandherd.bus.direct_get import read_batch
from sandherd.bus.kv import last_message, revision_headers
from sandherd.contracts.headers import KV_OPERATION, LIFETIME
from sandherd.contracts.names import new_uuid
from sandherd.telemetry import logs

BUCKET: Final = "monitor"
_STREAM: Final = f"KV_{BUCKET}"
_ROOT: Final = f"$KV.{BUCKET}"
_MANIFESTS: Final = re.compile(rf"{re.escape(_ROOT)}\.watch\.(\d+)\.(\d+)\.manifest")
_DELETE_HEADERS: Final = {KV_OPERATION: "DEL", LIFETIME: "60s"}
"""Headers that empty a key, with a delete marker that expires."""
_MAX_MANIFESTS: Final = 4096
_SHARED_FOR: Final = 60.0
"""Seconds for which snapshots of another layout stay in memory, as several partitions are restored from each."""
_SAVE_ERRORS: Final = (TimeoutError, PublishFailedError, nats.js.errors.Error, nats.errors.Error)
_log: Final = logs.get("snapshot_store")


class Snapshots:
    """The snapshots of all partitions, as one replica reads them."""

    def __init__(self, bus: Bus, rules: RuleSet) -> None:
        self._bus = bus
        self._rules = rules
        self._read_lock = asyncio.Lock()
        self._unpacked: dict[Manifest, Herd] = {}
        """Snapshots of another layout, by their manifests. The checksum alone can't be the key, because it is the same
        for all partitions without sandboxes."""

    def of(self, partition_id: PartitionId) -> "SnapshotStore":
        """The store of one partition's snapshot, for the time in which its lease is held."""
        return SnapshotStore(self._bus, partition_id, self)

    async def restore(self, partition_id: PartitionId, positions: dict[PartitionId, int]) -> Herd:
        """The newest usable state of a partition; an empty one, with a warning in the log, if there is none.

        Raises nats-py's errors while the bucket is unavailable.
        """
        for snapshots in snapshot_sets(positions, partition_id):
            try:
                herds = [await self._read_herd(each, shared=each.total != partition_id.total) for each in snapshots]
            except (SnapshotError, ValidationError, nats.js.errors.NotFoundError) as error:
                _log.warning("snapshot unusable, reading the stream from its first event", error=str(error))
                continue
            herd = herds[0] if snapshots == [partition_id] else merge_herds(herds, partition_id, self._rules)
            _log.info("snapshot restored", position=herd.position, sandboxes=len(herd.live))
            return herd
        return Herd(rules=self._rules)

    async def _read_herd(self, partition_id: PartitionId, *, shared: bool) -> Herd:
        async with self._read_lock:
            manifest = Manifest.model_validate_json((await self._read_message(manifest_key(partition_id))).data or b"")
            if shared and (cached := self._unpacked.get(manifest)) is not None:
                return cached
            pieces = [piece async for piece in self._read_pieces(partition_id, manifest)]
            herd = unpack(manifest, pieces, self._rules, _log_dropped)
            if shared:
                self._unpacked[manifest] = herd
                asyncio.get_running_loop().call_later(_SHARED_FOR, self._unpacked.pop, manifest, None)
            return herd

    async def _read_pieces(self, partition_id: PartitionId, manifest: Manifest) -> AsyncIterator[bytes]:
        for number in range(manifest.pieces):
            yield (await self._read_message(piece_key(partition_id, manifest.generation, number))).data or b""

    async def _read_message(self, subject: str) -> RawStreamMsg:
        return await last_message(self._bus, _STREAM, subject)

    async def manifests(self) -> dict[PartitionId, tuple[Manifest, int]]:
        """The stored manifests that can be read, each with its revision. Raises nats-py's errors."""
        manifests: dict[PartitionId, tuple[Manifest, int]] = {}
        for subject in (manifest_key(UNDIVIDED), f"{_ROOT}.watch.*.*.manifest"):
            messages = await read_batch(
                self._bus, _STREAM, subject, first=1, limit=_MAX_MANIFESTS, max_bytes=8 * 1024 * 1024
            )
            for message in messages:
                partition_id = _partition_id_of(message.subject)
                if partition_id is None or not message.data:
                    continue
                try:
                    manifests[partition_id] = Manifest.model_validate_json(message.data), message.sequence
                except ValidationError as error:
                    _log.warning("snapshot unusable, reading the stream from its first event", error=str(error))
        return manifests


class SnapshotStore:
    """Saves and restores one partition. Two sets of pieces alternate, so that the current one is not overwritten."""

    def __init__(self, bus: Bus, partition_id: PartitionId, snapshots: Snapshots) -> None:
        self._bus = bus
        self._partition_id = partition_id
        self._snapshots = snapshots
        self._revision = 0
        self._last_manifest: Manifest | None = None
        self.position = 0
        """The stream sequence of the last event in the snapshot."""
        self.pack_seconds = 0.0
        """CPU seconds that it took to pack the last snapshot."""

    async def restore(self) -> Herd:
        """The state of the partition as it was last saved; an empty one if there is no usable snapshot.

        Raises nats-py's errors while the bucket is unavailable.
        """
        stored = await self._snapshots.manifests()
        await self._read_own_manifest()
        positions = {place: manifest.position for place, (manifest, _) in stored.items() if place != self._partition_id}
        if self._last_manifest is not None:
            positions[self._partition_id] = self._last_manifest.position
        herd = await self._snapshots.restore(self._partition_id, positions)
        if self._last_manifest is not None and herd.position == self._last_manifest.position:
            self.position = herd.position
        return herd

    async def _read_own_manifest(self) -> None:
        """Read the manifest that the next save replaces.

        The stream's leader is queried, because a list may be older.
        """
        try:
            last = await last_message(self._bus, _STREAM, manifest_key(self._partition_id))
        except nats.js.errors.NotFoundError:
            return
        self._revision = last.seq or 0
        try:
            self._last_manifest = Manifest.model_validate_json(last.data or b"")
        except ValidationError:
            self._last_manifest = None

    async def save(self, herd: Herd, fence: int) -> None:
        """Store the herd as it is now. A failure is logged; the next save stores everything."""
        begun = time.process_time()
        manifest, pieces = pack(herd, self._next_generation(fence))
        self.pack_seconds = time.process_time() - begun
        try:
            for number, piece in enumerate(pieces):
                await self._publish(piece_key(self._partition_id, manifest.generation, number), piece)
            await self._publish_manifest(manifest)
            await self._clear(self._last_manifest, manifest)
            await self._clear_others()
        except _SAVE_ERRORS as error:
            _log.warning("snapshot not saved", error=repr(error))
            return
        self._last_manifest = manifest
        self.position = manifest.position

    def _next_generation(self, fence: int) -> str:
        last = self._last_manifest.generation if self._last_manifest else ""
        return f"{fence}-b" if last == f"{fence}-a" else f"{fence}-a"

    async def _publish(self, subject: str, payload: bytes) -> None:
        await self._bus.publish(subject, payload, msg_id=str(new_uuid()))

    async def _publish_manifest(self, manifest: Manifest) -> None:
        """Replace only the revision that was read: a suspended holder must not overwrite a successor's manifest."""
        payload = manifest.model_dump_json().encode()
        headers = revision_headers(self._revision)
        ack = await self._bus.publish(
            manifest_key(self._partition_id), payload, msg_id=str(new_uuid()), headers=headers
        )
        self._revision = ack.seq

    async def _clear(self, previous: Manifest | None, current: Manifest) -> None:
        """Empty the pieces of a previous lease holder. This holder's own two sets are overwritten in turn."""
        if previous is None or previous.generation.partition("-")[0] == current.generation.partition("-")[0]:
            return
        await self._empty(
            piece_key(self._partition_id, previous.generation, number) for number in range(previous.pieces)
        )

    async def _clear_others(self) -> None:
        """Empty the snapshots for another number of partitions, once each current partition has its own."""
        if self._partition_id.number:
            return
        stored = await self._snapshots.manifests()
        for other in unneeded_snapshots(
            {each: manifest.position for each, (manifest, _) in stored.items()}, self._partition_id.total
        ):
            manifest, _ = stored[other]
            pieces = [piece_key(other, manifest.generation, number) for number in range(manifest.pieces)]
            await self._empty([manifest_key(other), *pieces])
            _log.info("snapshot for a different number of partitions deleted", partitions=other.total)

    async def _empty(self, subjects: Iterable[str]) -> None:
        for subject in subjects:
            await self._bus.publish(subject, b"", msg_id=str(new_uuid()), headers=_DELETE_HEADERS)


def manifest_key(partition_id: PartitionId) -> str:
    """The subject of a manifest."""
    return f"{_prefix(partition_id)}.manifest"


def piece_key(partition_id: PartitionId, generation: str, number: int) -> str:
    """The subject of a piece."""
    return f"{_prefix(partition_id)}.piece.{generation}.{number}"


def _prefix(partition_id: PartitionId) -> str:
    return _ROOT if partition_id == UNDIVIDED else f"{_ROOT}.watch.{partition_id.total}.{partition_id.number}"


def _partition_id_of(subject: str) -> PartitionId | None:
    if subject == manifest_key(UNDIVIDED):
        return UNDIVIDED
    match = _MANIFESTS.fullmatch(subject)
    return PartitionId(int(match[1]), int(match[2])) if match else None


def _log_dropped(rule: str, count: int) -> None:
    _log.warning("state of a rule in the snapshot discarded", rule=rule, sandboxes=count)
