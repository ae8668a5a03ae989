"""Due times of a cron expression in a time zone, with daylight saving changes as in Debian's cron.

A local time that the change skips is due right after it. A local time that occurs twice is due the first time only.
Expressions with `*` in the minute or hour are due at every matching minute that passes.
"""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError

from spawner.spec_resolution import Refusal

_RANGES: Final = {
    "minute": "0 to 59",
    "hour": "0 to 23",
    "day of the month": "1 to 31 or L, the last",
    "month": "1 to 12 or JAN to DEC",
    "day of the week": "0 to 7 or SUN to SAT",
}
_FIELDS: Final = tuple(_RANGES)


def due_times(cron: str, time_zone: str, after: datetime) -> Iterator[datetime]:
    """The due times after `after`, in UTC, in order. The iterator ends if there is none within 50 years."""
    last = after
    for local in CronSim(cron, after.astimezone(ZoneInfo(time_zone))):
        due = local.astimezone(UTC)
        # When the clock is set back, cronsim may begin with a time that is not after `after`.
        if due > last:
            last = due
            yield due


def cron_refusal(cron: str, time_zone: str, now: datetime) -> Refusal | None:
    """Why this cron expression or time zone is refused, or None."""
    try:
        ZoneInfo(time_zone)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return Refusal(f"there is no time zone {time_zone}; use a name such as Europe/Berlin", "schedule.time_zone")
    if (count := len(cron.split())) != len(_FIELDS):
        needed = f"it needs five fields, not {count}: {', '.join(_FIELDS)}, as in '0 3 * * *'"
        return Refusal(f"cron {cron!r} is invalid: {needed}", "schedule.cron")
    try:
        first = next(due_times(cron, time_zone, now), None)
    except (CronSimError, ValueError) as error:
        return Refusal(f"cron {cron!r} is invalid: {_reason(cron, str(error))}", "schedule.cron")
    return None if first else Refusal(f"cron {cron!r} is never due", "schedule.cron")


def _reason(cron: str, error: str) -> str:
    """A readable form of the error of cronsim, such as `Bad day-of-month`, with the value of the field."""
    name = error.removeprefix("Bad ").replace("-of-", " of the ")
    if name not in _FIELDS:
        return error
    value = cron.split()[_FIELDS.index(name)]
    reason = f"{value!r} is not a valid {name} ({_RANGES[name]})"
    return f"{reason}; it has to exist in a named month" if name == "day of the month" else reason
