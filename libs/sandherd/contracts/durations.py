"""Durations as text, such as `7d` or `90s`, as users write them."""

from typing import Final

_UNITS: Final = ((86_400, "d"), (3600, "h"), (60, "m"))
_MIN_UNITS: Final = 20
"""`rounded_down` uses a unit for durations of at least this many units."""


def duration_text(seconds: float) -> str:
    """A duration as text in the largest unit of which it is a whole number: `7d`, `90s`."""
    if not seconds:
        return "0"
    whole = (f"{seconds / unit:.12g}{letter}" for unit, letter in _UNITS if seconds % unit == 0)
    return next(whole, f"{seconds:.12g}s")


def rounded_down(seconds: float) -> str:
    """A duration as text, rounded down to a whole number of one unit; it is at most a twentieth shorter.

    The text can be used as the value of an option.
    """
    unit, letter = next(((unit, letter) for unit, letter in _UNITS if seconds >= _MIN_UNITS * unit), (1, "s"))
    return f"{seconds // unit:.0f}{letter}"
