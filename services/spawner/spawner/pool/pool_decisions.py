"""Decisions about the pool, as pure functions of its records and of its desired size."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from sandherd.contracts.specs import SandboxLimits
from spawner.pool.warm_record import WarmRecord, WarmState
from spawner.spec_resolution import SpawnPolicy


@dataclass(frozen=True)
class PoolProfile:
    """The warm sandboxes that the pool holds for one profile."""

    profile: str
    runtime: str
    limits: SandboxLimits
    count: int
    user_namespaces: bool = False
    worker: str = ""
    """The digest of the code of their workers. A worker of another version may not find modules that it loads later."""


@dataclass(frozen=True)
class Needs:
    """The difference between the pool and its desired size."""

    make: tuple[PoolProfile, ...]
    """One entry for each missing warm sandbox."""
    drop: tuple[str, ...]
    """Units that are no longer needed."""


def kinds(menu: SpawnPolicy, worker: str = "") -> tuple[PoolProfile, ...]:
    """The warm sandboxes that the settings request. `worker` is the digest of the code of their workers."""
    return tuple(
        PoolProfile(
            name,
            profile.runtime or menu.default_runtime,
            menu.limits(profile.limits),
            profile.warm,
            profile.user_namespaces,
            worker,
        )
        for name, profile in sorted(menu.profiles.items())
        if profile.warm
    )


def needs(wanted: Iterable[PoolProfile], records: Iterable[WarmRecord], now: datetime, max_age: float) -> Needs:
    """The missing and the surplus units, not counting claimed ones. Units older than `max_age` seconds are surplus."""
    free = sorted(
        (record for record in records if record.state is not WarmState.CLAIMED),
        key=lambda record: (record.requested_at, record.unit),
        reverse=True,
    )
    youngest = now - timedelta(seconds=max_age)
    remaining = {_key(kind): kind.count for kind in wanted}
    drop = []
    for record in free:
        key = _key(record)
        if remaining.get(key, 0) > 0 and record.requested_at > youngest:
            remaining[key] -= 1
        else:
            drop.append(record.unit)
    missing = [kind for kind in wanted for _ in range(remaining[_key(kind)])]
    return Needs(make=tuple(missing), drop=tuple(drop))


def _key(profile_or_record: PoolProfile | WarmRecord) -> tuple[str, str, SandboxLimits, bool, str]:
    """The properties that can't be changed after a warm sandbox has started."""
    return (
        profile_or_record.profile,
        profile_or_record.runtime,
        profile_or_record.limits,
        profile_or_record.user_namespaces,
        profile_or_record.worker,
    )


def requested(unit: str, kind: PoolProfile, now: datetime) -> WarmRecord:
    """The record of a requested warm sandbox."""
    return WarmRecord(
        unit=unit,
        profile=kind.profile,
        runtime=kind.runtime,
        limits=kind.limits,
        user_namespaces=kind.user_namespaces,
        worker=kind.worker,
        requested_at=now,
    )


def ready(record: WarmRecord, public_key: str | None) -> WarmRecord:
    """The record of a sandbox whose worker waits, with the worker's public key: it can be claimed."""
    if record.state is not WarmState.REQUESTED:
        return record
    return record.model_copy(update={"state": WarmState.READY, "public_key": public_key})


def claimed(record: WarmRecord, by: str, now: datetime) -> WarmRecord:
    """Claim a warm sandbox for the sandbox `by`. Unchanged unless it is ready."""
    if record.state is not WarmState.READY:
        return record
    return record.model_copy(update={"state": WarmState.CLAIMED, "claimed_by": by, "claimed_at": now})


def claimable(
    records: Mapping[str, WarmRecord], profile: str, runtime: str, limits: SandboxLimits, worker: str = ""
) -> list[str]:
    """The claimable units whose workers run this code, oldest first."""
    wanted = (WarmState.READY, profile, runtime, limits, worker)
    found = [
        record
        for record in records.values()
        if (record.state, record.profile, record.runtime, record.limits, record.worker) == wanted
    ]
    return [record.unit for record in sorted(found, key=lambda record: (record.requested_at, record.unit))]


def stale(record: WarmRecord, now: datetime, grace: float) -> bool:
    """Whether a unit was claimed at least `grace` seconds ago: the record of the claiming sandbox is then overdue."""
    return record.claimed_at is not None and now >= record.claimed_at + timedelta(seconds=grace)
