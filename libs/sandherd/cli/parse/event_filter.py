"""Selects events by task or sandbox, type and time."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from difflib import get_close_matches
from typing import Literal

from sandherd.cli.parse.times import moment
from sandherd.client.errors import HerdError, checked_name
from sandherd.client.events.sequencer import Event
from sandherd.contracts.errors import Code
from sandherd.contracts.events import EVENTS
from sandherd.contracts.model import MAX_TYPES
from sandherd.contracts.names import SANDBOX_PREFIX


@dataclass(frozen=True)
class EventFilter:
    """Selects events of a task or sandbox by type and time. If `types` is empty, it selects all types."""

    kind: Literal["task", "sandbox"]
    name: str
    types: list[str]
    since: datetime | None

    def matches(self, event: Event) -> bool:
        """Whether a received event matches."""
        return (not self.types or event.type in self.types) and (self.since is None or event.time >= self.since)


def event_filter(name: str, kinds: Sequence[str], since: str | None) -> EventFilter:
    """The filter from command-line arguments. Raises `HerdError` for invalid arguments."""
    kind: Literal["task", "sandbox"] = "sandbox" if name.startswith(SANDBOX_PREFIX) else "task"
    return EventFilter(kind, checked_name(name, kind), types(kinds), moment(since, datetime.now(UTC)))


def types(names: Sequence[str]) -> list[str]:
    """The event types of these names: a name is a type, `agent.tool_use`, or a domain, `agent`, `agent.` or `agent.*`.

    Raises `HerdError` for an unknown name, or too many types.
    """
    selected: dict[str, None] = {}
    for name in names:
        selected |= dict.fromkeys(_matching_types(name))
    if len(selected) > MAX_TYPES:
        raise HerdError.of(Code.INVALID_FIELD, "too many event types", field="type", remedy="name fewer of them")
    return list(selected)


def _matching_types(name: str) -> list[str]:
    if name in EVENTS:
        return [name]
    domain = name.removesuffix("*").removesuffix(".")
    matches = [event_type for event_type in EVENTS if event_type.startswith(f"{domain}.")]
    if matches:
        return matches
    domains = {event_type.partition(".")[0]: None for event_type in EVENTS}
    close = get_close_matches(name, [*domains, *EVENTS], n=1)
    remedy = (
        f"did you mean {close[0]}?"
        if close
        else f"use a type of docs/events.md, or one of: {', '.join(sorted(domains))}"
    )
    raise HerdError.of(Code.INVALID_FIELD, f"there is no event {name[:60]!r}", field="type", remedy=remedy)
