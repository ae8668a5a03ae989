"""Options of subscriptions and webhooks: the start position, the types of events, and the entity."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from datetime import datetime

_NAMED_POSITIONS: Final[dict[str, Literal["new", "all"]]] = {"new": "new", "all": "all"}


def start_position(text: str) -> "Literal['new', 'all'] | int | datetime":
    """The first event of `--from`: new events, all events, a stream sequence or a time. Raises `HerdError`."""
    from datetime import UTC, datetime

    from sandherd.cli.parse.times import moment
    from sandherd.client.errors import HerdError
    from sandherd.contracts.errors import Code

    if text in _NAMED_POSITIONS:
        return _NAMED_POSITIONS[text]
    if text.isascii() and text.isdigit() and int(text):
        return int(text)
    try:
        if (time := moment(text, datetime.now(UTC))) is not None:
            return time
    except HerdError:
        pass  # the error below names this option
    raise HerdError.of(
        Code.INVALID_FIELD,
        f"--from {text[:40]!r} is not a start position",
        field="start",
        remedy="use new, all, a stream sequence, or a time: 90s, 10m, 2h, 7d, 2026-11-20T12:00",
    )


def event_types(kinds: Sequence[str]) -> list[str]:
    """The types or domains of the option `--type`, checked before any connection is made. Raises `HerdError`."""
    from sandherd.cli.parse.event_filter import types

    for kind in kinds:
        types([kind])
    return [kind.removesuffix("*").removesuffix(".") for kind in kinds]


def entity_name(name: str) -> str:
    """The name of a task or sandbox in the option `--about`. Raises `HerdError`."""
    from sandherd.client.errors import checked_name

    return checked_name(name, "about")
