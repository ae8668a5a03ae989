"""Which partitions a replica takes and releases, by what all replicas see; and what a partition begins with."""

import random
import time
from collections import Counter
from datetime import UTC, datetime

import pytest

from monitor.facts import ObservedEvent
from monitor.herd import Herd
from monitor.partition_leases import TTL, PartitionShares
from monitor.partition_plan import (
    UNDIVIDED,
    PartitionId,
    PartitionPlan,
    PartitionTable,
    layout_value,
    partition_of,
    partition_of_subject,
    plan,
    replica_key,
    table_of,
)
from monitor.rule_set import ALL
from monitor.snapshot import is_due, merge_herds, snapshot_sets, unneeded_snapshots
from sandherd.bus.lease import Lease

COUNT = 8
NOW = datetime(2026, 11, 20, tzinfo=UTC)


def table(holders: dict[int, str], *replicas: str, layout: int | None = COUNT) -> PartitionTable:
    return PartitionTable(
        layout, {PartitionId(COUNT, number): name for number, name in holders.items()}, dict.fromkeys(replicas, COUNT)
    )


def test_partition_of_an_event_is_that_of_its_sandbox() -> None:
    """By project and sandbox, so that each is in exactly one; sandboxes are spread over all."""
    names = [f"sbx-{number}" for number in range(400)]
    found = Counter(partition_of("p1", name, COUNT) for name in names)
    assert sorted(found) == list(range(COUNT))
    assert max(found.values()) < 2 * min(found.values())
    for name in names:
        subject = f"sandherd.v1.event.p1.{name}.agent.message"
        assert partition_of_subject(subject, COUNT) == partition_of("p1", name, COUNT)
        assert [number for number in range(COUNT) if PartitionId(COUNT, number).has("p1", name)] == [
            partition_of("p1", name, COUNT)
        ]
    assert partition_of_subject("garbage", COUNT) == 0


def test_table_is_read_from_keys() -> None:
    """Keys of other leases are ignored; the holder of a version without partitions has the layout 0."""
    values = {
        "monitor.watch": layout_value("a", 8),
        "monitor.watch.8.3": "a",
        "monitor.watch.4.0": "old",
        "monitor.watch.x.0": "?",
        "monitor.conductor": "a",
        replica_key("a", 8): "1",
        replica_key("01a2-uuid", 4): "1",
    }
    found = table_of(values)
    assert found.layout == 8
    assert found.holders == {PartitionId(8, 3): "a", PartitionId(4, 0): "old"}
    assert found.replicas == {"a": 8, "01a2-uuid": 4}
    assert table_of({"monitor.watch": "01a2-uuid"}).layout == 0
    assert table_of({}) == PartitionTable()


def test_only_replica_takes_all() -> None:
    """It does so even before its own announcement is visible."""
    assert plan("a", COUNT, table({})) == PartitionPlan(take=tuple(range(COUNT)))


def test_replica_takes_no_more_than_its_share() -> None:
    """The free partitions are dealt out, each to one replica."""
    plans = {name: plan(name, COUNT, table({}, "a", "b", "c")) for name in "abc"}
    assert sorted(number for one in plans.values() for number in one.take) == list(range(COUNT))
    assert sorted(len(one.take) for one in plans.values()) == [2, 3, 3]


def test_surplus_is_released_for_a_new_replica() -> None:
    """Nothing else moves."""
    holders = dict.fromkeys(range(4), "a") | dict.fromkeys(range(4, 8), "b")
    plans = {name: plan(name, COUNT, table(holders, "a", "b", "c")) for name in "abc"}
    assert plans == {"a": PartitionPlan(release=(3,)), "b": PartitionPlan(release=(7,)), "c": PartitionPlan()}


def test_partitions_of_a_killed_replica_are_shared() -> None:
    """Its leases and its announcement have expired."""
    holders = dict.fromkeys(range(3), "a") | dict.fromkeys((3, 4), "b")
    assert plan("a", COUNT, table(holders, "a", "b")).take == (5,)
    assert plan("b", COUNT, table(holders, "a", "b")).take == (6, 7)


def test_uneven_shares_are_stable() -> None:
    """9 partitions and 4 replicas: 3, 2, 2, 2, whichever replica has the 3; no partition moves on."""
    holders = {PartitionId(9, number): "dabcdabcd"[number] for number in range(9)}
    found = PartitionTable(9, holders, dict.fromkeys("abcd", 9))
    assert {plan(name, 9, found) for name in "abcd"} == {PartitionPlan()}


def test_replicas_with_another_number_of_partitions_do_not_watch_together() -> None:
    """Replicas with another number than the layout release their partitions. The others wait until all have."""
    mixed = PartitionTable(4, {PartitionId(8, 1): "a"}, {"a": 8, "b": 4})
    assert plan("a", 8, mixed) == PartitionPlan(release=(1,))
    assert plan("b", 4, mixed) == PartitionPlan()
    assert plan("b", 4, PartitionTable(4, {}, {"a": 8, "b": 4})).take == (0, 1, 2, 3)
    assert plan("a", 8, PartitionTable(4, {}, {"a": 8})) == PartitionPlan()
    assert plan("a", 8, PartitionTable(0, {PartitionId(8, 1): "a"}, {"a": 8})) == PartitionPlan(release=(1,))


def test_nothing_changes_without_a_layout() -> None:
    """The holder of the layout lease was killed: what is held stays held until another has it."""
    assert plan("a", COUNT, table({1: "a"}, "a", layout=None)) == PartitionPlan()


def test_partition_without_a_holder_makes_a_replica_unready(monkeypatch: pytest.MonkeyPatch) -> None:
    """After three times the time to live of a lease, unless replicas with another number of partitions watch."""

    async def hold(place: PartitionId, lease: Lease) -> None:
        raise AssertionError((place, lease))

    shares, now = PartitionShares(None, "me", 2, hold), time.monotonic()  # type: ignore[arg-type]  # nothing is sent
    assert (shares.problem(), shares.warning()) == (None, None)
    monkeypatch.setattr("monitor.partition_leases.time.monotonic", lambda: now + 3 * TTL + 1)
    assert shares.problem() == "no replica was seen to hold partition 0, 1 of 2"
    shares.record_holders(PartitionTable(2, {PartitionId(2, 1): "other"}))
    assert (shares.problem(), shares.warning()) == ("no replica was seen to hold partition 0 of 2", None)
    shares.record_holders(PartitionTable(8, {PartitionId(8, 1): "other"}))
    assert (shares.problem(), shares.warning()) == (None, "a replica with 8 partitions still runs, and this one has 2")


def test_any_history_of_replicas_ends_with_even_shares() -> None:
    """Replicas come, end and are killed at random; each acts by the table when its turn comes, one after the other."""
    for seed in range(200):
        chance = random.Random(seed)
        count, holders, alive = chance.choice([1, 2, 8, 13]), dict[int, str](), {"r0"}
        for number in range(1, 12):
            if chance.random() < 0.6:
                alive.add(f"r{number}")
            elif len(alive) > 1:
                alive.remove(chance.choice(sorted(alive)))
            holders = {number: name for number, name in holders.items() if name in alive}
            settle(chance, count, holders, alive)
        having = Counter(holders.values())
        assert sorted(holders) == list(range(count)), seed
        assert max(having.values()) - min(having[name] for name in alive) <= 1, seed


def settle(chance: random.Random, count: int, holders: dict[int, str], alive: set[str]) -> None:
    moved = 0
    for _ in range(4):
        for name in chance.sample(sorted(alive), len(alive)):
            seen = PartitionTable(
                count, {PartitionId(count, one): who for one, who in holders.items()}, dict.fromkeys(alive, count)
            )
            planned = plan(name, count, seen)
            for number in planned.release:
                assert holders.pop(number) == name
            for number in planned.take:
                assert number not in holders
                holders[number] = name
                moved += 1
    assert moved <= count


# --- snapshots ---------------------------------------------------------------------------------------------------


def herd_of(position: int, *names: str) -> Herd:
    herd = Herd()
    for name in names:
        herd.fold(ObservedEvent("p1", name, "agent.started", position, NOW))
    herd.position = position
    return herd


def test_snapshot_with_the_fewest_unread_events_is_used() -> None:
    """Of another layout all snapshots are needed; that of a version without partitions is one of a layout."""
    own, old = PartitionId(2, 1), [PartitionId(3, number) for number in range(3)]
    assert snapshot_sets({}, own) == []
    assert snapshot_sets({UNDIVIDED: 5}, own) == [[UNDIVIDED]]
    assert snapshot_sets({own: 9, UNDIVIDED: 5}, own) == [[own], [UNDIVIDED]]
    assert snapshot_sets({own: 9, **dict.fromkeys(old, 12)}, own) == [old, [own]]
    assert snapshot_sets({own: 9, **dict.fromkeys(old[:2], 12)}, own) == [[own]]
    assert snapshot_sets({own: 9, old[0]: 8, old[1]: 50, old[2]: 50}, own) == [[own], old]


def test_partition_begins_with_its_sandboxes_of_all_former_ones() -> None:
    """As of the earliest snapshot; events that a later one has already are ignored when they are read again."""
    names = [f"sbx-{number}" for number in range(40)]
    parts = [herd_of(100 + one, *(name for name in names if PartitionId(3, one).has("p1", name))) for one in range(3)]
    parts[2].remove(("p1", next(iter(parts[2].live))[1]))
    herds = [merge_herds(parts, PartitionId(2, number), ALL) for number in range(2)]
    assert {herd.position for herd in herds} == {100}
    assert sorted(key[1] for herd in herds for key in (*herd.live, *herd.ended)) == sorted(names)
    for number, herd in enumerate(herds):
        assert all(PartitionId(2, number).has(*key) for key in (*herd.live, *herd.ended, *herd.unwritten))
        for key, state in dict(herd.live).items():
            assert herd.fold(ObservedEvent(*key, "agent.completed", 100, NOW)) is state
    assert sum(len(herd.unwritten) for herd in herds) == 1


def test_many_events_are_saved_early_if_that_is_cheap() -> None:
    """A successor reads few events then; large snapshots are saved every 15 s, and take a small part of the CPU."""
    assert not is_due(unsaved=0, seconds=60, cpu_seconds=0)
    assert is_due(unsaved=1, seconds=15, cpu_seconds=0.5)
    assert not is_due(unsaved=2999, seconds=14, cpu_seconds=0.001)
    assert is_due(unsaved=3000, seconds=3, cpu_seconds=0.005)
    assert not is_due(unsaved=3000, seconds=2, cpu_seconds=0.005)
    assert not is_due(unsaved=9000, seconds=9, cpu_seconds=0.2)


def test_snapshots_of_a_former_layout_are_deleted_when_all_partitions_have_their_own() -> None:
    """They stay while a partition has no snapshot yet, or only an older one."""
    old = {UNDIVIDED: 50}
    assert unneeded_snapshots(old | {PartitionId(2, 0): 60}, 2) == []
    assert unneeded_snapshots(old | {PartitionId(2, 0): 60, PartitionId(2, 1): 40}, 2) == []
    assert unneeded_snapshots(old | {PartitionId(2, 0): 60, PartitionId(2, 1): 50}, 2) == [UNDIVIDED]
