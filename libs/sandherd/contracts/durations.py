"""Durations in words, as one types them."""

from typing import Final

_UNITS: Final = ((86_400, "d"), (3600, "h"), (60, "m"))
_ENOUGH: Final = 20
"""A unit is used for a rounded duration from this number of it."""


def duration_text(seconds: float) -> str:
    """A duration in the largest unit that it is a whole number of: `7d`, `90s`."""
    if not seconds:
        return "0"
    whole = (f"{seconds / unit:.12g}{letter}" for unit, letter in _UNITS if seconds % unit == 0)
    return next(whole, f"{seconds:.12g}s")


def rounded_down(seconds: float) -> str:
    """A duration as text in one unit, at most a twentieth shorter, so that it can be given as an option."""
    unit, letter = next(((unit, letter) for unit, letter in _UNITS if seconds >= _ENOUGH * unit), (1, "s"))
    return f"{seconds // unit:.0f}{letter}"
