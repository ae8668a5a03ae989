"""Backoff: delays double up to the maximum, and jitter only shortens them."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandherd.backoff import Backoff


def test_without_jitter_a_delay_doubles_up_to_the_maximum() -> None:
    """The first is the base."""
    policy = Backoff(base=0.1, cap=1.0, jitter=0)
    assert [policy.delay(attempt) for attempt in range(6)] == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]


@given(base=st.floats(0.001, 10), cap=st.floats(0.001, 3600), jitter=st.floats(0, 1), attempt=st.integers(-1, 10**9))
def test_jitter_only_shortens_within_its_share(base: float, cap: float, jitter: float, attempt: int) -> None:
    """For any policy and count of failures, no delay is over the maximum, or below its smallest share."""
    longest = Backoff(base, cap, jitter=0).delay(attempt)
    assert longest <= cap
    assert longest * (1 - jitter) * 0.999 <= Backoff(base, cap, jitter).delay(attempt) <= longest


@pytest.mark.parametrize(("jitter", "shortest"), [(1.0, 0.0), (0.5, 2.0)])
def test_a_draw_decides_the_delay(jitter: float, shortest: float) -> None:
    """A caller that derives its draw gets the same delay again; a higher draw is a longer delay."""
    policy = Backoff(base=1.0, cap=60.0, jitter=jitter)
    delays = [policy.delay(2, draw) for draw in (0.0, 0.25, 0.5, 1.0)]
    assert (delays[0], delays[-1]) == (shortest, 4.0)
    assert all(shorter < longer for shorter, longer in pairwise(delays))
