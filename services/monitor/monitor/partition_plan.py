"""Assigns sandboxes to partitions, and partitions to replicas. Pure.

Every replica reads the same table of leases and comes to the same result, so that no replica has to direct the others.
"""

import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from sandherd.contracts.subjects import PREFIX

LAYOUT_LEASE: Final = "monitor.watch"
"""The lease whose holder determines the number of partitions. A monitor of a version without partitions watches all
sandboxes while it holds it."""
_REPLICA: Final = "monitor.replica"
_PROJECT: Final = len(PREFIX.split(".")) + 1
"""The index of the project among the tokens of an event's subject. The next token is the entity."""


class PartitionId(NamedTuple):
    """One partition of a layout: `number`, from 0, of `total`."""

    total: int
    number: int

    @property
    def lease(self) -> str:
        """The key of its lease."""
        return f"{LAYOUT_LEASE}.{self.total}.{self.number}"

    def has(self, project: str, sandbox: str) -> bool:
        """Whether a sandbox belongs to it."""
        return partition_of(project, sandbox, self.total) == self.number


UNDIVIDED: Final = PartitionId(0, 0)
"""The only partition of a monitor without partitions, such as one of an earlier version."""


def partition_of(project: str, sandbox: str, count: int) -> int:
    """The number of the partition of a sandbox, of `count`."""
    return zlib.crc32(f"{project}/{sandbox}".encode()) % count


def partition_of_subject(subject: str, count: int) -> int:
    """The number of the partition of the entity in an event's subject, also if the entity is not a sandbox."""
    tokens = subject.split(".", _PROJECT + 2)
    return partition_of(tokens[_PROJECT], tokens[_PROJECT + 1], count) if len(tokens) > _PROJECT + 1 else 0


# --- the table of leases -----------------------------------------------------------------------------------------


def layout_value(instance: str, count: int) -> str:
    """What the holder of the layout lease stores in it."""
    return f"{instance} {count}"


def replica_key(instance: str, count: int) -> str:
    """The key by which a replica announces itself to replicas with the same number of partitions."""
    return f"{_REPLICA}.{count}.{instance}"


@dataclass(frozen=True)
class PartitionTable:
    """The monitors' keys, decoded: the replicas that run, and the partitions that each holds."""

    layout: int | None = None
    """The number of partitions of the holder of the layout lease; 0 if it is of a version without partitions; None if
    no replica holds the lease."""
    holders: Mapping[PartitionId, str] = field(default_factory=dict)
    """The instance that holds each partition, for all layouts."""
    replicas: Mapping[str, int] = field(default_factory=dict)
    """The number of partitions of each replica that has announced itself."""


def table_of(values: Mapping[str, str]) -> PartitionTable:
    """The table from keys that have not expired, and their values. Unknown keys are ignored."""
    layout: int | None = None
    holders: dict[PartitionId, str] = {}
    replicas: dict[str, int] = {}
    for key, value in values.items():
        if key == LAYOUT_LEASE:
            layout = _number(value.partition(" ")[2]) or 0
        elif (place := _place(key)) is not None:
            holders[place] = value
        elif key.startswith(f"{_REPLICA}."):
            count, _, instance = key.removeprefix(f"{_REPLICA}.").partition(".")
            replicas[instance] = _number(count) or 0
    return PartitionTable(layout, holders, replicas)


def _place(key: str) -> PartitionId | None:
    rest = key.removeprefix(f"{LAYOUT_LEASE}.")
    count, _, number = rest.partition(".")
    known = _number(count), _number(number)
    return None if rest == key or known[0] is None or known[1] is None else PartitionId(known[0], known[1])


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() else None


# --- sharing -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PartitionPlan:
    """The partitions that a replica is to take now, and those that it is to release."""

    take: tuple[int, ...] = ()
    release: tuple[int, ...] = ()


def plan(me: str, count: int, table: PartitionTable) -> PartitionPlan:
    """The partitions that this replica, the instance `me`, is to take and to release, of `count` partitions.

    A replica has at most one partition more than another. The replicas that have most partitions keep the additional
    one, so that few partitions move. All replicas assign free partitions in the same order. While replicas with another
    number of partitions watch, this one does not.
    """
    held = {place.number: holder for place, holder in table.holders.items() if place.total == count}
    mine = sorted(number for number, holder in held.items() if holder == me)
    if table.layout is None:
        return PartitionPlan()
    if table.layout != count:
        return PartitionPlan(release=tuple(mine))
    quotas = _quotas({me, *(name for name, its in table.replicas.items() if its == count)}, count, held)
    if len(mine) > quotas[me]:
        return PartitionPlan(release=tuple(mine[quotas[me] :]))
    if any(place.total != count for place in table.holders):
        return PartitionPlan()
    return PartitionPlan(take=tuple(_assign(sorted(set(range(count)) - held.keys()), quotas, held)[me]))


def _quotas(replicas: Iterable[str], count: int, held: Mapping[int, str]) -> dict[str, int]:
    """The number of partitions that each replica is to have, ordered by how many it has now, most first."""
    having = {name: sum(holder == name for holder in held.values()) for name in replicas}
    ranked = sorted(having, key=lambda name: (-having[name], name))
    each, more = divmod(count, len(ranked))
    return {name: each + (rank < more) for rank, name in enumerate(ranked)}


def _assign(free: Iterable[int], quotas: Mapping[str, int], held: Mapping[int, str]) -> dict[str, list[int]]:
    """The free partitions that each replica is to take."""
    dealt: dict[str, list[int]] = {name: [] for name in quotas}
    having = {name: sum(holder == name for holder in held.values()) for name in quotas}
    for number in free:
        short = [name for name, quota in quotas.items() if having[name] < quota]
        if not short:
            break
        dealt[short[0]].append(number)
        having[short[0]] += 1
    return dealt
