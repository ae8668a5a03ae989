"""The list of revocations: it grows with ended sandboxes, and shrinks by itself."""

from hypothesis import given
from hypothesis import strategies as st

from sandherd.bus.identity import Key, KeyKind
from sandherd.bus.identity.material import revocations
from sandherd.bus.identity.revocation import MAX_KEYS, account_token, with_new_keys, within_limit

ACCOUNT = {"sub": "A1", "name": "HERD", "nats": {"type": "account", "version": 2}}
lists = st.dictionaries(st.sampled_from("abcdefgh"), st.integers(0, 10_000))


@given(lists, lists, st.integers(0, 10_000))
def test_revocations_are_listed_until_their_tokens_expire(held: dict[str, int], new: dict[str, int], now: int) -> None:
    """No key whose token is still valid is dropped, and none is listed for more than a minute longer."""
    listed = with_new_keys(held, new, now)
    for key in held | new:
        end = max(held.get(key, 0), new.get(key, 0))
        assert (key in listed) == (end + 60 > now)
        assert key not in listed or listed[key] == end


@given(lists, lists, st.integers(0, 10_000))
def test_second_revocation_changes_nothing(held: dict[str, int], new: dict[str, int], now: int) -> None:
    """A revocation may be repeated until it is acknowledged."""
    once = with_new_keys(held, new, now)
    assert with_new_keys(once, new, now) == once


def test_account_token_revokes_tokens_up_to_the_last_expiry() -> None:
    """The broker refuses a listed key's tokens up to that second, also one that is made after the revocation."""
    token = account_token(ACCOUNT, {"U1": 5000}, Key.new(KeyKind.OPERATOR), now=1000)
    assert revocations(token) == {"U1": 5000}


def test_revocation_list_of_the_busiest_hour_fits_a_message() -> None:
    """At 100,000 sandboxes a day some 4,200 end within a credential's hour: well under the broker's 1 MiB."""
    listed = {Key.new(KeyKind.USER).public: 1_800_000_000 for _ in range(4200)}
    assert len(account_token(ACCOUNT, listed, Key.new(KeyKind.OPERATOR), now=1)) < 512 * 1024


def test_full_revocation_list_retains_worker_keys() -> None:
    """Of more keys than fit, those with the latest expiry are dropped: joiners' keys, useless after the end."""
    joiners = {f"joiner-{number}": 50_000 + number for number in range(MAX_KEYS)}
    workers = {f"worker-{number}": 3600 for number in range(100)}
    listed = within_limit(with_new_keys(joiners, workers, 0))
    assert len(listed) == MAX_KEYS
    assert workers.items() <= listed.items()
    assert within_limit(with_new_keys(listed, {}, 0)) == listed
