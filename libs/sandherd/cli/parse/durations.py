"""Options with a duration, which is a number of seconds or has a unit."""

from typing import Annotated, Final

import typer

from sandherd.contracts.durations import duration_text, parse_duration

_MIN_SECONDS: Final = 0.1


class DefaultDuration(float):
    """A default in seconds. The help text shows it in the form that a user types, such as `1m`."""

    def __str__(self) -> str:
        return duration_text(self)


HALF_A_MINUTE: Final = DefaultDuration(30)
ONE_MINUTE: Final = DefaultDuration(60)
TWO_MINUTES: Final = DefaultDuration(120)


def duration(value: str | float) -> float:
    """Seconds from `0.5`, `90`, `90s` or `10m`. Typer also calls this with defaults, which are numbers."""
    if isinstance(value, float):
        return value
    try:
        return parse_duration(str(value))
    except ValueError:
        raise typer.BadParameter("it has to be a duration: use 90s, 10m or 2h") from None


def _wait_time(value: str | float) -> float:
    seconds = duration(value)
    if seconds < _MIN_SECONDS:
        raise typer.BadParameter(f"it has to be at least {_MIN_SECONDS:g}s")
    return seconds


def _whole_seconds(value: str | float) -> int:
    seconds = duration(value)
    if not seconds.is_integer():
        raise typer.BadParameter("it has to be a whole number of seconds")
    return int(seconds)


WaitTime = Annotated[
    float, typer.Option("--timeout", metavar="TIME", help="Maximum time to wait: 5s, 1m.", parser=_wait_time)
]
Wait = Annotated[
    float,
    typer.Option("--wait", metavar="TIME", help="Maximum time to wait for the broker: 90s, 5m.", parser=duration),
]
Linger = Annotated[
    int,
    typer.Option(
        "--linger",
        metavar="TIME",
        help="Keep the sandbox this long after the task, for messages: 90s, 10m.",
        parser=_whole_seconds,
    ),
]
