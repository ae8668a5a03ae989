"""Durations in words, as one types them."""

from typing import Final

_UNITS: Final = ((86_400, "d"), (3600, "h"), (60, "m"))


def duration_text(seconds: float) -> str:
    """A duration in the largest unit that it is a whole number of: `7d`, `90s`."""
    if not seconds:
        return "0"
    whole = (f"{seconds / unit:.12g}{letter}" for unit, letter in _UNITS if seconds % unit == 0)
    return next(whole, f"{seconds:.12g}s")
