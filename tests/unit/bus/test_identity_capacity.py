"""Accounts share a broker's connections, and the broker has fewer connections than it may open files."""

from hypothesis import given
from hypothesis import strategies as st

from sandherd.bus.auth.account_names import Account
from sandherd.bus.identity.capacity import MAX_CONNECTIONS, MIN_CONNECTIONS, Capacity


@given(st.integers(256, 2**31))
def test_connections_leave_files_for_streams(descriptors: int) -> None:
    """At least a third of the server's files is left for streams."""
    assert Capacity.for_descriptors(descriptors).connections * 3 <= descriptors * 2


@given(st.integers(0, 2**31))
def test_full_accounts_leave_connections_for_the_system_account(descriptors: int) -> None:
    """The server accepts a connection of the system account however many the other accounts hold."""
    capacity = Capacity.for_descriptors(descriptors)
    assert MIN_CONNECTIONS <= capacity.connections <= MAX_CONNECTIONS
    assert sum(capacity.of(account) for account in Account) < capacity.connections
    assert all(capacity.of(account) >= 4 for account in Account)


def test_unlimited_descriptors_yield_the_maximum() -> None:
    """`RLIM_INFINITY` is a negative number."""
    assert Capacity.for_descriptors(-1).connections == MAX_CONNECTIONS
