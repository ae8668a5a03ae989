"""Times and sizes as a command line says them."""

import re
from datetime import UTC, datetime, timedelta
from typing import Final

from sandherd.client.errors import HerdError
from sandherd.contracts.errors import Code

_SPAN: Final = re.compile(r"^(\d{1,9})([smhd]?)$")
_SECONDS: Final = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400}
_SIZE: Final = re.compile(r"^(\d{1,6}(?:\.\d{1,3})?)\s*([mg])(?:i?b)?$", re.IGNORECASE)
_MIB: Final = {"m": 1, "g": 1024}


def seconds(given: str, option: str) -> int:
    """A span of time: `90`, `90s`, `10m`, `2h`, `7d`. Raises `HerdError` naming the option."""
    found = _SPAN.match(given)
    if found is None or not int(found[1]):
        raise _wrong(option, given, "no span of time", "use 90s, 10m, 2h or 7d")
    return int(found[1]) * _SECONDS[found[2]]


def at(given: str, option: str, now: datetime) -> datetime:
    """A moment to come: a span of time from now, or ISO 8601; one without an offset is meant in local time."""
    if _SPAN.match(given):
        return now + timedelta(seconds=seconds(given, option))
    try:
        return datetime.fromisoformat(given).astimezone(UTC)
    except (ValueError, OverflowError):
        raise _wrong(option, given, "no time", "use 2h, or 2026-11-20T12:00") from None


def memory_of(given: str | None) -> int | None:
    """An amount of memory in MiB: `512m`, `4g`, `1.5g`. Raises `HerdError`."""
    if given is None:
        return None
    found = _SIZE.match(given)
    if found is None:
        raise _wrong("--memory", given, "no amount of memory", "use 512m or 4g")
    return int(float(found[1]) * _MIB[found[2].lower()])


def limits_of(memory: str | None, cores: float | None) -> dict[str, float]:
    """The limits that were asked for, by name. Raises `HerdError`."""
    asked = {"memory_mb": memory_of(memory), "cores": cores}
    return {name: limit for name, limit in asked.items() if limit is not None}


def _wrong(option: str, given: str, what: str, remedy: str) -> HerdError:
    field = option.removeprefix("--")
    return HerdError.of(Code.INVALID_FIELD, f"{option} {given[:40]!r} is {what}", field=field, remedy=remedy)
