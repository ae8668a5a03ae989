"""Packs a herd into pieces that fit in broker messages, and unpacks them. Pure; `snapshot_store` stores them.

Each partition has a snapshot of its own. After the number of partitions has changed, a partition is restored from the
snapshots of the former layout.
"""

import hashlib
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from monitor.assessment.allowance import TokenAllowance
from monitor.facts import Key
from monitor.herd import Herd
from monitor.notices import Notice
from monitor.partition_plan import PartitionId
from monitor.rule_set import ALL, RuleSet
from monitor.sandbox_state import SandboxActivity

VERSION: Final = 7
"""The version of the fields of `SandboxActivity`, without its parts. A snapshot of another version is ignored; the
stream is read from its start."""
PIECE_BYTES: Final = 512 * 1024
"""Maximum size of a piece."""
MAX_BYTES: Final = 1024 * 1024 * 1024
"""Maximum size of an uncompressed snapshot."""
MAX_INTERVAL: Final = 15.0
"""Maximum seconds between two snapshots of a partition, if there are events."""
_MAX_UNSAVED_EVENTS: Final = 3000
"""With more unsaved events, a snapshot is saved before `MAX_INTERVAL` has passed, because the next holder of the lease
must read these events before it can act."""
_MIN_SECONDS: Final = 3.0
"""Minimum seconds between two snapshots of a partition."""
_MIN_CPU_TIMES: Final = 400
"""Minimum time between two snapshots before `MAX_INTERVAL` has passed, as a multiple of the CPU time of the last
snapshot, because a replica may have many partitions."""


class SnapshotError(Exception):
    """The snapshot can't be used. Nothing is lost, because the stream has the events."""


class Manifest(BaseModel):
    """The pieces that form a snapshot, and its last event.

    It is written after the pieces, so that it names only complete snapshots.
    """

    model_config = ConfigDict(frozen=True)

    version: int = VERSION
    position: Annotated[int, Field(ge=0)]
    generation: str
    pieces: Annotated[int, Field(ge=1, le=4096)]
    sha256: str
    sandboxes: int


class _Content(BaseModel):
    live: list[SandboxActivity]
    ended: list[Key]
    notices: list[Notice] = []
    allowance: TokenAllowance = TokenAllowance()
    unwritten: list[SandboxActivity] = []
    parts: dict[str, dict[str, Any]] = {}
    """The parts of each rule, by the rule's name and then by the index of the sandbox in `live`. The index is text,
    because JSON has no other keys."""


_CONTENT: Final = TypeAdapter(_Content)
_adapters: Final[dict[type[Any], TypeAdapter[dict[str, Any]]]] = {}


def is_due(unsaved: int, seconds: float, cpu_seconds: float) -> bool:
    """Whether to save now, by the number of unsaved events, and the age and the CPU time of the last snapshot."""
    return unsaved > 0 and (
        seconds >= MAX_INTERVAL
        or (unsaved >= _MAX_UNSAVED_EVENTS and seconds >= max(_MIN_SECONDS, cpu_seconds * _MIN_CPU_TIMES))
    )


def pack(herd: Herd, generation: str) -> tuple[Manifest, list[bytes]]:
    """The herd as a manifest and its pieces."""
    content = _Content.model_construct(
        live=list(herd.live.values()),
        ended=list(herd.ended),
        notices=list(herd.notices.values()),
        allowance=herd.allowance,
        unwritten=list(herd.unwritten.values()),
        parts=_encode_parts(herd),
    )
    packed = zlib.compress(_CONTENT.dump_json(content), 1)
    pieces = [packed[start : start + PIECE_BYTES] for start in range(0, len(packed), PIECE_BYTES)]
    manifest = Manifest(
        position=herd.position,
        generation=generation,
        pieces=len(pieces),
        sha256=hashlib.sha256(packed).hexdigest(),
        sandboxes=len(herd.live),
    )
    return manifest, pieces


def _encode_parts(herd: Herd) -> dict[str, dict[str, Any]]:
    live = list(herd.live.values())
    return {
        name: _adapter(name, herd.rules).dump_python(
            {str(index): state.parts[name] for index, state in enumerate(live) if name in state.parts}, mode="json"
        )
        for name in herd.rules.new_parts
    }


def _adapter(rule: str, rules: RuleSet) -> TypeAdapter[dict[str, Any]]:
    """The type adapter for the parts of one rule, by the type that the rule declares."""
    part = type(rules.new_parts[rule])
    if part not in _adapters:
        _adapters[part] = TypeAdapter(dict[str, part])  # type: ignore[valid-type]  # known at run time only
    return _adapters[part]


def unpack(
    manifest: Manifest,
    pieces: Sequence[bytes],
    rules: RuleSet = ALL,
    on_dropped: Callable[[str, int], None] = lambda _rule, _count: None,
) -> Herd:
    """The herd of a manifest and its pieces. Raises `SnapshotError` if they are incomplete or of another version.

    Parts that the rules of this monitor can't read are dropped, and these rules start with new parts; `on_dropped` gets
    the name of each such rule, and the number of sandboxes.
    """
    packed = b"".join(pieces)
    if manifest.version != VERSION:
        raise SnapshotError(f"version {manifest.version}; this monitor reads version {VERSION}")
    if hashlib.sha256(packed).hexdigest() != manifest.sha256:
        raise SnapshotError("the checksum of its pieces does not match")
    try:
        content = _CONTENT.validate_json(zlib.decompressobj().decompress(packed, MAX_BYTES))
    except (zlib.error, ValidationError) as error:
        raise SnapshotError(f"{type(error).__name__}: invalid content") from error
    parts: list[dict[str, Any]] = [{} for _ in content.live]
    for name, encoded in content.parts.items():
        decoded = _decode_parts(name, encoded, rules)
        for index, part in decoded.items():
            parts[int(index)][name] = part
        if len(decoded) < len(encoded):
            on_dropped(name, len(encoded) - len(decoded))
    live = [state.changed(parts=state_parts) for state, state_parts in zip(content.live, parts, strict=True)]
    return Herd(
        manifest.position,
        live,
        content.ended,
        content.notices,
        content.unwritten,
        allowance=content.allowance,
        rules=rules,
    )


def _decode_parts(name: str, encoded: Mapping[str, Any], rules: RuleSet) -> Mapping[str, Any]:
    """The parts of a rule that its current type can decode."""
    if name not in rules.new_parts:
        return {}
    adapter = _adapter(name, rules)
    decoded: dict[str, Any] = {}
    for index, part in encoded.items():
        try:
            decoded |= adapter.validate_python({index: part})
        except ValidationError:
            continue
    return decoded


# --- layouts -----------------------------------------------------------------------------------------------------


def snapshot_sets(positions: Mapping[PartitionId, int], partition_id: PartitionId) -> list[list[PartitionId]]:
    """The sets of snapshots from which a partition can be restored, the best first. A set is of one layout.

    `positions` has the last event of each stored snapshot. From its own layout a partition needs only its own snapshot,
    from another layout all snapshots. The best set is the one after which the fewest events have to be read.
    """
    layouts = sorted({found.total for found in positions}, key=lambda count: count != partition_id.total)
    candidates = [[partition_id] if count == partition_id.total else _all_partitions(count) for count in layouts]
    complete = [snapshots for snapshots in candidates if all(snapshot in positions for snapshot in snapshots)]
    return sorted(complete, key=lambda snapshots: -min(positions[snapshot] for snapshot in snapshots))


def _all_partitions(count: int) -> list[PartitionId]:
    return [PartitionId(count, number) for number in range(max(1, count))]


def merge_herds(herds: Sequence[Herd], partition_id: PartitionId, rules: RuleSet) -> Herd:
    """The sandboxes of one partition from several snapshots, at the position of the earliest snapshot.

    Events after that position are read again; a state from a later snapshot ignores events that it has already.
    """
    earliest = min(herds, key=lambda herd: herd.position)
    return Herd(
        earliest.position,
        [state for herd in herds for key, state in herd.live.items() if partition_id.has(*key)],
        [key for herd in herds for key in herd.ended if partition_id.has(*key)],
        [
            notice
            for herd in herds
            for notice in herd.notices.values()
            if partition_id.has(notice.project, notice.sandbox)
        ],
        [state for herd in herds for key, state in herd.unwritten.items() if partition_id.has(*key)],
        allowance=earliest.allowance,
        rules=rules,
    )


def unneeded_snapshots(positions: Mapping[PartitionId, int], count: int) -> list[PartitionId]:
    """The snapshots of other layouts that no partition of this layout needs any more."""
    own_positions = [positions.get(snapshot) for snapshot in _all_partitions(count)]
    if None in own_positions:
        return []
    earliest = min(position for position in own_positions if position is not None)
    others = [snapshot for snapshot in positions if snapshot.total != count]
    layouts = {
        snapshot.total: min(positions[other] for other in others if other.total == snapshot.total)
        for snapshot in others
    }
    return [snapshot for snapshot in others if layouts[snapshot.total] <= earliest]
