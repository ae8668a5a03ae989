"""When a provider is asked again, and when not."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spawner.runtimes.boxes.provider import ProviderError, ProviderFault
from spawner.runtimes.boxes.retrying import Patience, persistently, wait_before_next

PATIENCE = Patience(tries=5, first=0.25, longest=8)
LASTING = set(ProviderFault) - {ProviderFault.TRANSIENT, ProviderFault.RATE_LIMITED}


def error(fault: ProviderFault, wait: float | None = None) -> ProviderError:
    return ProviderError(fault, "said", wait=wait)


@pytest.mark.parametrize("fault", sorted(LASTING))
def test_what_stays_so_is_not_asked_again(fault: ProviderFault) -> None:
    """Nor what took its time already."""
    assert wait_before_next(1, error(fault), PATIENCE, 0.5) is None


@given(tried=st.integers(1, 4), chance=st.floats(0, 1))
def test_the_wait_is_all_chance_within_a_growing_bound(tried: int, chance: float) -> None:
    """Full jitter: from nothing up to twice as much after each try."""
    wait = wait_before_next(tried, error(ProviderFault.TRANSIENT), PATIENCE, chance)
    assert wait == pytest.approx(chance * min(8, 0.25 * 2 ** (tried - 1)))


@given(asked=st.floats(0, 8), chance=st.floats(0, 1))
def test_a_wait_that_is_asked_for_is_kept(asked: float, chance: float) -> None:
    """Never is it asked before that, and soon after."""
    wait = wait_before_next(1, error(ProviderFault.RATE_LIMITED, asked), PATIENCE, chance)
    assert wait is not None
    assert asked <= wait <= asked + 0.25


def test_a_longer_wait_is_left_to_who_asked() -> None:
    """As is everything after the last try."""
    assert wait_before_next(1, error(ProviderFault.RATE_LIMITED, 8.1), PATIENCE, 0) is None
    assert wait_before_next(5, error(ProviderFault.TRANSIENT), PATIENCE, 0) is None


async def test_it_is_asked_so_often_in_all() -> None:
    """And the last refusal is what is heard."""
    asked = 0

    async def ask() -> None:
        nonlocal asked
        asked += 1
        raise ProviderError(ProviderFault.TRANSIENT, f"try {asked}")

    with pytest.raises(ProviderError, match="try 5"):
        await persistently(ask, PATIENCE, lambda: 0.0)
    assert asked == 5
