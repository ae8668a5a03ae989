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
_REPLICA_KEY: Final = "monitor.replica"
_PROJECT_INDEX: Final = len(PREFIX.split(".")) + 1
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
    """The number of the partition of the entity in an event's subject, even if the entity is not a sandbox."""
    tokens = subject.split(".", _PROJECT_INDEX + 2)
    return (
        partition_of(tokens[_PROJECT_INDEX], tokens[_PROJECT_INDEX + 1], count)
        if len(tokens) > _PROJECT_INDEX + 1
        else 0
    )


# --- the table of leases -----------------------------------------------------------------------------------------


def layout_value(instance: str, count: int) -> str:
    """The value that the holder of the layout lease stores in it."""
    return f"{instance} {count}"


def replica_key(instance: str, count: int) -> str:
    """The key by which a replica announces itself to replicas with the same number of partitions."""
    return f"{_REPLICA_KEY}.{count}.{instance}"


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
        elif (partition_id := _partition_id_of(key)) is not None:
            holders[partition_id] = value
        elif key.startswith(f"{_REPLICA_KEY}."):
            count, _, instance = key.removeprefix(f"{_REPLICA_KEY}.").partition(".")
            replicas[instance] = _number(count) or 0
    return PartitionTable(layout, holders, replicas)


def _partition_id_of(key: str) -> PartitionId | None:
    rest = key.removeprefix(f"{LAYOUT_LEASE}.")
    count, _, number = rest.partition(".")
    numbers = _number(count), _number(number)
    return None if rest == key or numbers[0] is None or numbers[1] is None else PartitionId(numbers[0], numbers[1])


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
    held = {
        partition_id.number: holder for partition_id, holder in table.holders.items() if partition_id.total == count
    }
    own = sorted(number for number, holder in held.items() if holder == me)
    if table.layout is None:
        return PartitionPlan()
    if table.layout != count:
        return PartitionPlan(release=tuple(own))
    quotas = _quotas(
        {me, *(name for name, replica_count in table.replicas.items() if replica_count == count)}, count, held
    )
    if len(own) > quotas[me]:
        return PartitionPlan(release=tuple(own[quotas[me] :]))
    if any(partition_id.total != count for partition_id in table.holders):
        return PartitionPlan()
    return PartitionPlan(take=tuple(_assign(sorted(set(range(count)) - held.keys()), quotas, held)[me]))


def _quotas(replicas: Iterable[str], count: int, held: Mapping[int, str]) -> dict[str, int]:
    """The number of partitions that each replica is to have, ordered by how many it has now, most first."""
    held_count = {name: sum(holder == name for holder in held.values()) for name in replicas}
    ranked = sorted(held_count, key=lambda name: (-held_count[name], name))
    share, remainder = divmod(count, len(ranked))
    return {name: share + (rank < remainder) for rank, name in enumerate(ranked)}


def _assign(free: Iterable[int], quotas: Mapping[str, int], held: Mapping[int, str]) -> dict[str, list[int]]:
    """The free partitions that each replica is to take."""
    assigned: dict[str, list[int]] = {name: [] for name in quotas}
    held_count = {name: sum(holder == name for holder in held.values()) for name in quotas}
    for number in free:
        below_quota = [name for name, quota in quotas.items() if held_count[name] < quota]
        if not below_quota:
            break
        assigned[below_quota[0]].append(number)
        held_count[below_quota[0]] += 1
    return assigned
