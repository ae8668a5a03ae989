"""Durations as text, such as `7d` or `90s`, as users write them."""

import re
from collections.abc import Mapping
from typing import Final

UNIT_SECONDS: Final[Mapping[str, int]] = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_DURATION: Final = re.compile(r"(\d{1,9})(?:\.(\d{1,3}))?([smhd]?)", re.ASCII)
_UNITS: Final = ((86_400, "d"), (3600, "h"), (60, "m"))
_MIN_UNITS: Final = 20
"""`rounded_down` uses a unit for durations of at least this many units."""


def parse_duration(text: str) -> float:
    """The seconds of a duration such as `90`, `0.5`, `90s`, `10m`, `1.5h` or `7d`. Raises `ValueError`."""
    found = _DURATION.fullmatch(text)
    if found is None:
        raise ValueError("it is not a duration")
    whole, fraction, unit = found.groups(default="")
    thousandths = int(whole) * 1000 + int(fraction.ljust(3, "0"))  # as integers, so that 1.1h is 3960 seconds
    return thousandths * UNIT_SECONDS.get(unit, 1) / 1000


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
