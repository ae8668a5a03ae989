"""Parses times in the past from command-line options."""

from datetime import UTC, datetime, timedelta

from sandherd.client.errors import HerdError
from sandherd.contracts.durations import UNIT_SECONDS, parse_duration
from sandherd.contracts.errors import Code


def moment(text: str | None, now: datetime, option: str = "--since") -> datetime | None:
    """A time from a duration before `now` (`90s`, `10m`, `1.5h`, `7d`), or from ISO 8601; None without a text.

    ISO 8601 without an offset is local time. Raises `HerdError` naming the option.
    """
    if text is None:
        return None
    try:
        if text.endswith(tuple(UNIT_SECONDS)):  # a number alone is a date: 20261120
            return now - timedelta(seconds=parse_duration(text))
        return datetime.fromisoformat(text).astimezone(UTC)
    except (ValueError, OverflowError):
        raise HerdError.of(
            Code.INVALID_FIELD,
            f"{option} {text[:40]!r} is not a time",
            field=option.removeprefix("--"),
            remedy="use 90s, 10m, 2h, 7d or 2026-11-20T12:00",
        ) from None
