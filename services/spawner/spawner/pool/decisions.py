"""What is to be done about the pool, as pure functions over what is kept of it, and what is wanted."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from sandherd.contracts.specs import Limits
from spawner.pool.record import WarmRecord, WarmState
from spawner.resolving import Menu


@dataclass(frozen=True)
class Kind:
    """What the pool keeps for one profile."""

    profile: str
    runtime: str
    limits: Limits
    count: int
    user_namespaces: bool = False


@dataclass(frozen=True)
class Needs:
    """What a pass finds to be done."""

    make: tuple[Kind, ...]
    """One entry for each that is missing."""
    drop: tuple[str, ...]
    """Units that nobody needs as they are."""


def kinds(menu: Menu) -> tuple[Kind, ...]:
    """What the herd's settings want to be kept."""
    return tuple(
        Kind(
            name,
            profile.runtime or menu.default_runtime,
            menu.limits(profile.limits),
            profile.warm,
            profile.user_namespaces,
        )
        for name, profile in sorted(menu.profiles.items())
        if profile.warm
    )


def needs(wanted: Iterable[Kind], records: Iterable[WarmRecord], now: datetime, max_age: float) -> Needs:
    """What is missing and what is too much. What is claimed is not the pool's any more. `max_age` is in seconds."""
    free = sorted(
        (record for record in records if record.state is not WarmState.CLAIMED),
        key=lambda record: (record.requested_at, record.unit),
        reverse=True,
    )
    youngest = now - timedelta(seconds=max_age)
    room = {_key(kind): kind.count for kind in wanted}
    drop = []
    for record in free:
        key = _key(record)
        if room.get(key, 0) > 0 and record.requested_at > youngest:
            room[key] -= 1
        else:
            drop.append(record.unit)
    missing = [kind for kind in wanted for _ in range(room[_key(kind)])]
    return Needs(make=tuple(missing), drop=tuple(drop))


def _key(of: Kind | WarmRecord) -> tuple[str, str, Limits, bool]:
    """What a sandbox can't change any more once it is started."""
    return of.profile, of.runtime, of.limits, of.user_namespaces


def requested(unit: str, kind: Kind, now: datetime) -> WarmRecord:
    """The intent to start one."""
    return WarmRecord(
        unit=unit,
        profile=kind.profile,
        runtime=kind.runtime,
        limits=kind.limits,
        user_namespaces=kind.user_namespaces,
        requested_at=now,
    )


def ready(record: WarmRecord) -> WarmRecord:
    """It waits."""
    return record.model_copy(update={"state": WarmState.READY}) if record.state is WarmState.REQUESTED else record


def claimed(record: WarmRecord, by: str, now: datetime) -> WarmRecord:
    """It is to be this sandbox; only one that waits can be."""
    if record.state is not WarmState.READY:
        return record
    return record.model_copy(update={"state": WarmState.CLAIMED, "claimed_by": by, "claimed_at": now})


def claimable(records: Mapping[str, WarmRecord], profile: str, runtime: str, limits: Limits) -> list[str]:
    """The units that could be claimed, those first that have waited longest."""
    found = [
        record
        for record in records.values()
        if (record.state, record.profile, record.runtime, record.limits) == (WarmState.READY, profile, runtime, limits)
    ]
    return [record.unit for record in sorted(found, key=lambda record: (record.requested_at, record.unit))]


def stale(record: WarmRecord, now: datetime, grace: float) -> bool:
    """Whether the sandbox that it was claimed for should have been written down by now. `grace` is in seconds."""
    return record.claimed_at is not None and now >= record.claimed_at + timedelta(seconds=grace)
