"""The wanted size of the pool, and which of its units may be claimed."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from sandherd.contracts.requests import Profile
from sandherd.contracts.specs import SandboxLimits, SandboxSpec
from spawner.pool.pool_decisions import Needs, PoolProfile, claimable, claimed, kinds, needs, ready, requested, stale
from spawner.pool.warm_record import WarmRecord, WarmState
from spawner.pool.worker_code import digest_of, worker_code
from spawner.spec_resolution import Refusal, SpawnPolicy, expiry, resolve, same_as_profile

NOW = datetime(2026, 11, 21, tzinfo=UTC)
SMALL, LARGE = SandboxLimits(memory_mb=512), SandboxLimits(memory_mb=4096)
KIND = PoolProfile("quick", "process", SMALL, 2)
MENU = SpawnPolicy(
    runtimes=frozenset({"process"}),
    default_runtime="process",
    defaults=SMALL,
    caps=LARGE,
    profiles={"quick": Profile(warm=2), "large": Profile(limits=LARGE, env={"A": "1", "B": "2"})},
    usual_ttl=100,
    max_ttl=1000,
)


def records(
    count: int, state: WarmState = WarmState.READY, kind: PoolProfile = KIND, age: float = 0
) -> list[WarmRecord]:
    at = NOW - timedelta(seconds=age)
    return [requested(f"wrm-{state}-{n}", kind, at).model_copy(update={"state": state}) for n in range(count)]


@given(free=st.integers(0, 5), waiting=st.integers(0, 3), taken=st.integers(0, 3))
def test_pool_makes_missing_and_drops_surplus_units(free: int, waiting: int, taken: int) -> None:
    """Claimed units do not count; the others come to exactly the wanted number."""
    known = records(free) + records(waiting, WarmState.REQUESTED) + records(taken, WarmState.CLAIMED)
    found = needs([KIND], known, NOW, max_age=60)
    assert free + waiting + len(found.make) - len(found.drop) == KIND.count
    assert not found.make or not found.drop
    assert not any(unit.startswith("wrm-claimed") for unit in found.drop)


def test_old_and_unwanted_units_are_replaced() -> None:
    """A unit is replaced after its maximum age, or once its profile has other limits."""
    assert needs([KIND], records(2, age=61), NOW, max_age=60) == Needs(
        make=(KIND, KIND), drop=("wrm-ready-1", "wrm-ready-0")
    )
    other = PoolProfile("quick", "process", LARGE, 1)
    assert needs([other], records(1), NOW, max_age=60) == Needs(make=(other,), drop=("wrm-ready-0",))
    assert needs([], records(1), NOW, max_age=60).drop == ("wrm-ready-0",)


def test_unit_with_a_worker_of_another_version_is_replaced() -> None:
    """It is not claimed either: modules that it has not loaded may have been renamed by an upgrade in place."""
    (kind,) = kinds(MENU, "new")
    old = records(2) + records(1, kind=kinds(MENU, "old")[0])
    assert set(needs([kind], old, NOW, max_age=60).drop) == {record.unit for record in old}
    assert claimable({record.unit: record for record in old}, "quick", "process", SMALL, "new") == []
    (own, _) = records(2, kind=kind)
    assert needs([kind], [own], NOW, max_age=60) == Needs(make=(kind,), drop=())
    assert claimable({own.unit: own}, "quick", "process", SMALL, "new") == [own.unit]


def test_worker_code_changes_with_its_files(tmp_path: Path) -> None:
    """The digest changes with a new file, a renamed file, and changed content."""
    path = tmp_path / "a.py"
    path.write_text("x = 1\n")
    found = [digest_of({"a.py": path}), digest_of({"b.py": path}), digest_of({"a.py": path, "b.py": path})]
    path.write_text("x = 10\n")
    found.append(digest_of({"a.py": path}))
    assert len(set(found)) == 4
    assert worker_code() == worker_code() != ""


def test_only_a_ready_unit_is_claimed_once() -> None:
    """A claim changes only a ready unit; any other is unchanged."""
    record = requested("wrm-1", KIND, NOW)
    assert claimed(record, "p1.sbx-1", NOW) is record
    mine = claimed(ready(record, "UKEY"), "p1.sbx-1", NOW)
    assert (mine.state, mine.claimed_by) == (WarmState.CLAIMED, "p1.sbx-1")
    assert claimed(mine, "p1.sbx-2", NOW) is mine
    assert mine.public_key == "UKEY"
    assert ready(mine, None) is mine
    assert not stale(mine, NOW + timedelta(seconds=59), 60)
    assert stale(mine, NOW + timedelta(seconds=60), 60)


def test_oldest_ready_unit_is_claimed_first() -> None:
    """Only units of the same profile, runtime and limits are claimable."""
    known = {record.unit: record for record in [*records(1), *records(1, WarmState.REQUESTED)]}
    older = requested("wrm-older", KIND, NOW - timedelta(seconds=1)).model_copy(update={"state": WarmState.READY})
    assert claimable({**known, older.unit: older}, "quick", "process", SMALL) == ["wrm-older", "wrm-ready-0"]
    assert claimable(known, "quick", "process", LARGE) == []
    assert claimable(known, "large", "process", SMALL) == []


def test_pool_follows_the_profiles() -> None:
    """The pool is empty by default; its units have the limits that a task of the profile resolves to."""
    assert kinds(MENU) == (PoolProfile("quick", "process", SMALL, 2),)
    assert same_as_profile(SMALL, "quick", MENU)
    assert not same_as_profile(LARGE, "quick", MENU)
    assert not same_as_profile(SMALL, None, MENU)


def test_spec_overrides_profile_and_profile_the_herd() -> None:
    """Limits, variables and the time to live come from the first that sets them."""
    own = resolve(SandboxSpec(profile="large", limits=SMALL, env={"B": "mine"}), MENU)
    assert not isinstance(own, Refusal)
    assert (own.limits, own.env) == (SMALL, {"A": "1", "B": "mine"})
    of_profile, plain = resolve(SandboxSpec(profile="large"), MENU), resolve(SandboxSpec(), MENU)
    assert not isinstance(of_profile, Refusal)
    assert not isinstance(plain, Refusal)
    assert (of_profile.limits, plain.limits, plain.runtime) == (LARGE, SMALL, "process")
    assert expiry(SandboxSpec(), MENU, NOW) == NOW + timedelta(seconds=100)
    assert expiry(SandboxSpec(ttl_seconds=700), MENU, NOW) == NOW + timedelta(seconds=700)
