"""The list of revocations: it grows by who ends, and shrinks by itself."""

from hypothesis import given
from hypothesis import strategies as st

from sandherd.bus.identity import Key, Kind
from sandherd.bus.identity.material import revocations
from sandherd.bus.identity.revoking import MOST, account_token, merged

ACCOUNT = {"sub": "A1", "name": "HERD", "nats": {"type": "account", "version": 2}}
lists = st.dictionaries(st.sampled_from("abcdefgh"), st.integers(0, 10_000))


@given(lists, lists, st.integers(0, 10_000))
def test_what_is_still_good_is_listed_and_what_is_long_over_is_not(
    held: dict[str, int], new: dict[str, int], now: int
) -> None:
    """No key whose token could still be used is forgotten, and none is kept for more than a minute after."""
    listed = merged(held, new, now)
    for key in held | new:
        end = max(held.get(key, 0), new.get(key, 0))
        assert (key in listed) == (end + 60 > now)
        assert key not in listed or listed[key] == end


@given(lists, lists, st.integers(0, 10_000))
def test_revoking_twice_is_revoking_once(held: dict[str, int], new: dict[str, int], now: int) -> None:
    """A repetition changes nothing, so that it may be tried until it is acknowledged."""
    once = merged(held, new, now)
    assert merged(once, new, now) == once


def test_the_accounts_token_refuses_tokens_made_before_the_end_of_the_last_one() -> None:
    """The broker refuses a listed key's tokens up to that second, also one that is made later than the revocation."""
    token = account_token(ACCOUNT, {"U1": 5000}, Key.new(Kind.OPERATOR), now=1000)
    assert revocations(token) == {"U1": 5000}


def test_the_list_of_the_busiest_hour_fits_a_message() -> None:
    """At 100,000 sandboxes a day some 4,200 end within a credential's hour: well under the broker's 1 MiB."""
    listed = {Key.new(Kind.USER).public: 1_800_000_000 for _ in range(4200)}
    assert len(account_token(ACCOUNT, listed, Key.new(Kind.OPERATOR), now=1)) < 512 * 1024


def test_a_list_that_is_full_keeps_workers_keys() -> None:
    """Of more keys than fit, those that are good longest go: a joiner's, which opens nothing after the end."""
    joiners = {f"joiner-{number}": 50_000 + number for number in range(MOST)}
    workers = {f"worker-{number}": 3600 for number in range(100)}
    listed = merged(joiners, workers, 0)
    assert len(listed) == MOST
    assert workers.items() <= listed.items()
    assert merged(listed, {}, 0) == listed
