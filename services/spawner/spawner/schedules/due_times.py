"""Due times of a cron expression in a time zone, with daylight saving changes as in Debian's cron.

A time that does not exist is due right after the change, and one that exists twice is due the first time; expressions
with `*` in the minute or hour are due at every such minute that passes.
"""

from collections.abc import Iterator
from datetime import UTC, datetime
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError

from spawner.spec_resolution import Refusal


def due_times(cron: str, time_zone: str, after: datetime) -> Iterator[datetime]:
    """The due times after a moment, in UTC, in order. They end when there is none for 50 years."""
    last = after
    for local in CronSim(cron, after.astimezone(ZoneInfo(time_zone))):
        due = local.astimezone(UTC)
        # Where the clock is put back, the library may begin with a time that has passed.
        if due > last:
            last = due
            yield due


def cron_refusal(cron: str, time_zone: str, now: datetime) -> Refusal | None:
    """Why there are no such due times, or None."""
    try:
        ZoneInfo(time_zone)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return Refusal(f"there is no time zone {time_zone}; use a name such as Europe/Berlin", "schedule.time_zone")
    try:
        first = next(due_times(cron, time_zone, now), None)
    except (CronSimError, ValueError) as error:
        return Refusal(f"cron {cron!r} is invalid: {error}", "schedule.cron")
    return None if first else Refusal(f"cron {cron!r} is never due", "schedule.cron")
