"""What the pool is to hold, and what of it may be claimed."""

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from sandherd.contracts.requests import Profile
from sandherd.contracts.specs import Limits, SandboxSpec
from spawner.pool.decisions import Kind, Needs, claimable, claimed, kinds, needs, ready, requested, stale
from spawner.pool.record import WarmRecord, WarmState
from spawner.resolving import Menu, Refusal, expiry, resolve, same_as_profile

NOW = datetime(2026, 11, 21, tzinfo=UTC)
SMALL, LARGE = Limits(memory_mb=512), Limits(memory_mb=4096)
KIND = Kind("quick", "process", SMALL, 2)
MENU = Menu(
    runtimes=frozenset({"process"}),
    default_runtime="process",
    defaults=SMALL,
    caps=LARGE,
    profiles={"quick": Profile(warm=2), "large": Profile(limits=LARGE, env={"A": "1", "B": "2"})},
    usual_ttl=100,
    max_ttl=1000,
)


def records(count: int, state: WarmState = WarmState.READY, kind: Kind = KIND, age: float = 0) -> list[WarmRecord]:
    at = NOW - timedelta(seconds=age)
    return [requested(f"wrm-{state}-{n}", kind, at).model_copy(update={"state": state}) for n in range(count)]


@given(free=st.integers(0, 5), waiting=st.integers(0, 3), taken=st.integers(0, 3))
def test_what_is_missing_is_made_and_what_is_too_much_goes(free: int, waiting: int, taken: int) -> None:
    """What is claimed counts for nothing; the rest comes to exactly what is wanted."""
    known = records(free) + records(waiting, WarmState.REQUESTED) + records(taken, WarmState.CLAIMED)
    found = needs([KIND], known, NOW, max_age=60)
    assert free + waiting + len(found.make) - len(found.drop) == KIND.count
    assert not found.make or not found.drop
    assert not any(unit.startswith("wrm-claimed") for unit in found.drop)


def test_what_is_old_or_of_a_kind_that_is_not_wanted_goes() -> None:
    """After its time, or once its profile has other limits, one is replaced."""
    assert needs([KIND], records(2, age=61), NOW, max_age=60) == Needs(
        make=(KIND, KIND), drop=("wrm-ready-1", "wrm-ready-0")
    )
    other = Kind("quick", "process", LARGE, 1)
    assert needs([other], records(1), NOW, max_age=60) == Needs(make=(other,), drop=("wrm-ready-0",))
    assert needs([], records(1), NOW, max_age=60).drop == ("wrm-ready-0",)


def test_only_what_waits_is_claimed_and_only_once() -> None:
    """A claim is written over what waits; whatever else it is, it stays."""
    record = requested("wrm-1", KIND, NOW)
    assert claimed(record, "p1.sbx-1", NOW) is record
    mine = claimed(ready(record), "p1.sbx-1", NOW)
    assert (mine.state, mine.claimed_by) == (WarmState.CLAIMED, "p1.sbx-1")
    assert claimed(mine, "p1.sbx-2", NOW) is mine
    assert ready(mine) is mine
    assert not stale(mine, NOW + timedelta(seconds=59), 60)
    assert stale(mine, NOW + timedelta(seconds=60), 60)


def test_the_one_that_has_waited_longest_is_claimed_first() -> None:
    """Of those of the same profile, runtime and limits."""
    known = {record.unit: record for record in [*records(1), *records(1, WarmState.REQUESTED)]}
    older = requested("wrm-older", KIND, NOW - timedelta(seconds=1)).model_copy(update={"state": WarmState.READY})
    assert claimable({**known, older.unit: older}, "quick", "process", SMALL) == ["wrm-older", "wrm-ready-0"]
    assert claimable(known, "quick", "process", LARGE) == []
    assert claimable(known, "large", "process", SMALL) == []


def test_the_pool_holds_what_the_profiles_want() -> None:
    """None by default; with the limits that a task of the profile resolves to."""
    assert kinds(MENU) == (Kind("quick", "process", SMALL, 2),)
    assert same_as_profile(SMALL, "quick", MENU)
    assert not same_as_profile(LARGE, "quick", MENU)
    assert not same_as_profile(SMALL, None, MENU)


def test_a_spec_comes_first_then_its_profile_then_the_herd() -> None:
    """Limits, variables and the time to live, each from the first that says something."""
    own = resolve(SandboxSpec(profile="large", limits=SMALL, env={"B": "mine"}), MENU)
    assert not isinstance(own, Refusal)
    assert (own.limits, own.env) == (SMALL, {"A": "1", "B": "mine"})
    of_profile, plain = resolve(SandboxSpec(profile="large"), MENU), resolve(SandboxSpec(), MENU)
    assert not isinstance(of_profile, Refusal)
    assert not isinstance(plain, Refusal)
    assert (of_profile.limits, plain.limits, plain.runtime) == (LARGE, SMALL, "process")
    assert expiry(SandboxSpec(), MENU, NOW) == NOW + timedelta(seconds=100)
    assert expiry(SandboxSpec(ttl_seconds=700), MENU, NOW) == NOW + timedelta(seconds=700)
