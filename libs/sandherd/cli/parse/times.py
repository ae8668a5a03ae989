"""Parses times in the past from command-line options."""

import re
from datetime import UTC, datetime, timedelta
from typing import Final

from sandherd.client.errors import HerdError
from sandherd.contracts.errors import Code

_AGO: Final = re.compile(r"^(\d{1,6})([smhd])$")
"""Matches a duration."""
_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


def moment(text: str | None, now: datetime, option: str = "--since") -> datetime | None:
    """A time from a duration before `now` (`90s`, `10m`, `2h`, `7d`), or from ISO 8601; None without a text.

    ISO 8601 without an offset is local time. Raises `HerdError` naming the option.
    """
    if text is None:
        return None
    ago = _AGO.match(text)
    try:
        if ago is not None:
            return now - timedelta(**{_UNITS[ago[2]]: int(ago[1])})
        return datetime.fromisoformat(text).astimezone(UTC)
    except (ValueError, OverflowError):
        raise HerdError.of(
            Code.INVALID_FIELD,
            f"{option} {text[:40]!r} is not a time",
            field=option.removeprefix("--"),
            remedy="use 90s, 10m, 2h, 7d or 2026-11-20T12:00",
        ) from None
