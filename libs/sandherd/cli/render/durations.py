"""Formats durations for tables."""

from datetime import timedelta
from typing import Final

_UNIT_SECONDS: Final = (("d", 86_400), ("h", 3600), ("m", 60), ("s", 1))


def span(time: timedelta) -> str:
    """A duration in its largest unit and the next smaller one: `3h 12m`.

    A negative duration, which differing clocks can cause, is `0s`.
    """
    remaining = max(0, int(time.total_seconds()))
    parts = []
    for unit, seconds in _UNIT_SECONDS:
        number, remaining = divmod(remaining, seconds)
        parts.append((number, unit))
    first = next((at for at, (number, _) in enumerate(parts) if number), len(parts) - 1)
    return " ".join(f"{number}{unit}" for number, unit in parts[first : first + 2] if number or unit == "s")
