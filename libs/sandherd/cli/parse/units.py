"""Parses durations, future times and limits of sandboxes from command-line options."""

import re
from datetime import UTC, datetime, timedelta
from typing import Final

from sandherd.client.errors import HerdError
from sandherd.contracts.durations import parse_duration
from sandherd.contracts.errors import Code

_SIZE: Final = re.compile(r"^(\d{1,6}(?:\.\d{1,3})?)\s*([mg])(?:i?b)?$", re.IGNORECASE)
_MIB: Final = {"m": 1, "g": 1024}


def seconds(text: str, option: str) -> int:
    """A duration in seconds: `90`, `90s`, `10m`, `1.5h`, `7d`. Raises `HerdError` naming the option."""
    found = positive_duration(text, option)
    if not found.is_integer():
        raise _invalid_option(option, text, "not a whole number of seconds", "use 90s, 10m, 2h or 7d")
    return int(found)


def positive_duration(text: str, option: str) -> float:
    """A duration in seconds as `seconds` accepts it, also `0.5`. Raises `HerdError` naming the option."""
    found = _duration(text)
    if not found:
        raise _invalid_option(option, text, "not a duration", "use 90s, 10m, 2h or 7d")
    return found


def future_time(text: str, option: str, now: datetime) -> datetime:
    """A future time: a duration from now, or ISO 8601, which is local time without an offset. Raises `HerdError`."""
    try:
        if _duration(text) is not None:
            return now + timedelta(seconds=positive_duration(text, option))
        time = datetime.fromisoformat(text)
        time = time if time.tzinfo else time.astimezone()
        moment = time.astimezone(UTC)
    except (ValueError, OverflowError):
        raise _invalid_option(option, text, "not a time", "use 2h, or 2026-11-20T12:00") from None
    if moment <= now:
        message = f"{option} {time.isoformat(' ', 'seconds')} is in the past"
        remedy = "use a later time, or a duration from now, such as 2h"
        raise HerdError.of(Code.INVALID_FIELD, message, field=option.removeprefix("--"), remedy=remedy)
    return moment


def _duration(text: str) -> float | None:
    try:
        return parse_duration(text)
    except ValueError:
        return None


def memory_of(text: str | None) -> int | None:
    """An amount of memory in MiB: `512m`, `4g`, `1.5g`. Raises `HerdError`."""
    if text is None:
        return None
    match = _SIZE.match(text)
    if match is None:
        raise _invalid_option("--memory", text, "not an amount of memory", "use 512m or 4g")
    return int(float(match[1]) * _MIB[match[2].lower()])


def limits_of(memory: str | None, cores: float | None) -> dict[str, float]:
    """The limits from these options, by their fields in `SandboxLimits`. Raises `HerdError`."""
    limits = {"memory_mb": memory_of(memory), "cores": cores}
    return {name: limit for name, limit in limits.items() if limit is not None}


def _invalid_option(option: str, text: str, problem: str, remedy: str) -> HerdError:
    field = option.removeprefix("--")
    return HerdError.of(Code.INVALID_FIELD, f"{option} {text[:40]!r} is {problem}", field=field, remedy=remedy)
