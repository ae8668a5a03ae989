"""Accounts share a broker's connections, and the broker has fewer connections than it may open files."""

from hypothesis import given
from hypothesis import strategies as st

from sandherd.bus.account_names import Account
from sandherd.bus.identity.capacity import LEAST_CONNECTIONS, MOST_CONNECTIONS, Capacity


@given(st.integers(256, 2**31))
def test_a_server_takes_fewer_connections_than_it_may_open_files(descriptors: int) -> None:
    """A third of its files at the least is left for streams."""
    assert Capacity.for_descriptors(descriptors).connections * 3 <= descriptors * 2


@given(st.integers(0, 2**31))
def test_full_accounts_leave_room_for_the_system_account(descriptors: int) -> None:
    """Whatever all accounts hold, the server still takes a connection."""
    capacity = Capacity.for_descriptors(descriptors)
    assert LEAST_CONNECTIONS <= capacity.connections <= MOST_CONNECTIONS
    assert sum(capacity.of(account) for account in Account) < capacity.connections
    assert all(capacity.of(account) >= 4 for account in Account)


def test_no_limit_of_files_is_the_most() -> None:
    """`RLIM_INFINITY` is a negative number."""
    assert Capacity.for_descriptors(-1).connections == MOST_CONNECTIONS
