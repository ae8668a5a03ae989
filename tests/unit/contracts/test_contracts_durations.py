"""Durations as text."""

import pytest

from sandherd.contracts.durations import duration_text, parse_duration, rounded_down


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


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("0", 0), ("90", 90), ("0.5", 0.5), ("90s", 90), ("1.5m", 90), ("1.1h", 3960), ("7d", 604_800), ("0.001s", 0.001)],
)
def test_duration_is_a_number_with_or_without_a_unit(text: str, seconds: float) -> None:
    """A number alone is seconds. The result is exact."""
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "soon", "-1", "1.", ".5", "1.0001", "1h30m", "1 h", "1H", "9" * 10, "1e3", "٣", "1\n"]
)
def test_other_text_is_no_duration(text: str) -> None:
    """Signs, blanks, exponents, combined units and digits of other scripts are refused."""
    with pytest.raises(ValueError, match="not a duration"):
        parse_duration(text)


@pytest.mark.parametrize("seconds", [0, 0.5, 60, 3960, 604_792])
def test_text_of_a_duration_can_be_parsed(seconds: float) -> None:
    """Errors show limits in a form that options accept."""
    assert parse_duration(duration_text(seconds)) == seconds
