"""Durations as text."""

import pytest

from sandherd.contracts.durations import duration_text, rounded_down


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0"), (90, "90s"), (3600, "1h"), (604_800, "7d"), (604_792, "604792s"), (0.5, "0.5s")]
)
def test_duration_is_exact(seconds: float, text: str) -> None:
    """The text has the largest unit of which the duration is a whole number."""
    assert duration_text(seconds) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0s"), (90, "90s"), (3599.5, "59m"), (7200, "120m"), (604_792, "167h"), (2e6, "23d")]
)
def test_rounded_duration_is_short_and_never_longer(seconds: float, text: str) -> None:
    """The text has a unit that options accept, and is at most a twentieth shorter than the duration."""
    assert rounded_down(seconds) == text
