"""The time of a forge, under the control of a test."""

from datetime import UTC, datetime, timedelta


class Clock:
    """A clock that follows the host's, or stands still if it was created with a time; a test moves it."""

    def __init__(self, frozen: datetime | None = None) -> None:
        self._frozen, self._moved = frozen, timedelta()

    def now(self) -> datetime:
        """The time now, with its time zone."""
        return (self._frozen or datetime.now(UTC)) + self._moved

    def advance(self, seconds: float) -> None:
        """Move the clock forward."""
        self._moved += timedelta(seconds=seconds)


def stamp(moment: datetime) -> str:
    """The time as forges write it: to the second, in UTC."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
