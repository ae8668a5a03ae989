"""Which requests to a provider are retried, and when."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spawner.runtimes.boxes.provider import ProviderError, ProviderFault
from spawner.runtimes.boxes.retry import RetryLimits, wait_before_next, with_retry

PATIENCE = RetryLimits(tries=5, first=0.25, longest=8)
LASTING = set(ProviderFault) - {ProviderFault.TRANSIENT, ProviderFault.RATE_LIMITED}


def error(fault: ProviderFault, wait: float | None = None) -> ProviderError:
    return ProviderError(fault, "failed", wait=wait)


@pytest.mark.parametrize("fault", sorted(LASTING))
def test_permanent_fault_is_not_retried(fault: ProviderFault) -> None:
    """A request that has already used its time is not repeated either."""
    assert wait_before_next(1, error(fault), PATIENCE, 0.5) is None


@given(tried=st.integers(1, 4), chance=st.floats(0, 1))
def test_wait_is_random_within_a_growing_bound(tried: int, chance: float) -> None:
    """Full jitter: from nothing up to twice as much after each try."""
    wait = wait_before_next(tried, error(ProviderFault.TRANSIENT), PATIENCE, chance)
    assert wait == pytest.approx(chance * min(8, 0.25 * 2 ** (tried - 1)))


@given(requested=st.floats(0, 8), chance=st.floats(0, 1))
def test_requested_wait_is_respected(requested: float, chance: float) -> None:
    """The next request comes not before the wait, and soon after."""
    wait = wait_before_next(1, error(ProviderFault.RATE_LIMITED, requested), PATIENCE, chance)
    assert wait is not None
    assert requested <= wait <= requested + 0.25


def test_wait_beyond_patience_is_left_to_the_caller() -> None:
    """The last attempt has no wait either."""
    assert wait_before_next(1, error(ProviderFault.RATE_LIMITED, 8.1), PATIENCE, 0) is None
    assert wait_before_next(5, error(ProviderFault.TRANSIENT), PATIENCE, 0) is None


async def test_request_is_repeated_up_to_its_limit() -> None:
    """The last error is raised."""
    requested = 0

    async def ask() -> None:
        nonlocal requested
        requested += 1
        raise ProviderError(ProviderFault.TRANSIENT, f"try {requested}")

    with pytest.raises(ProviderError, match="try 5"):
        await with_retry(ask, PATIENCE, lambda: 0.0)
    assert requested == 5
