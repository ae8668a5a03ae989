"""Deliveries as rows of `events`. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from sandherd.bus.consuming import Delivery
from sandherd.contracts.envelope import Envelope
from sandherd.contracts.events import EventData
from sandherd.contracts.reading import read_event

Row = tuple[Any, ...]
"""The values of one row, in the order of `COLUMNS`."""

TOLD: Final = frozenset(
    {
        "agent.started",
        "agent.usage",
        "agent.turn_completed",
        "agent.model_call_completed",
        "agent.tool_use",
        "agent.tool_completed",
        "agent.tool_result",
    }
)
"""What an agent says that telemetry is made from."""

COLUMNS: Final = (
    ("id", "uuid"),
    ("stream_sequence", "bigint"),
    ("sequence", "integer"),
    ("time", "timestamptz"),
    ("project", "text"),
    ("entity", "text"),
    ("type", "text"),
    ("source", "text"),
    ("taskid", "text"),
    ("sandboxid", "text"),
    ("envelope", "text"),
)
"""Each column's name and type as the statement takes them."""
TYPE: Final = [name for name, _ in COLUMNS].index("type")


@dataclass(slots=True)
class Batch:
    """Events that were read: of each its place among the deliveries, its row, and, unless an agent said it, itself.

    Parallel lists, and no more of an event than is needed: this is where a busy herd spends its time.
    """

    places: list[int] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    spoken: list[Envelope[EventData] | None] = field(default_factory=list)
    told: list[tuple[int, Envelope[EventData]]] = field(default_factory=list)
    """By place, what of an agent is measured and traced; only of a whole batch."""

    def __len__(self) -> int:
        return len(self.rows)

    def part(self, start: int, end: int) -> "Batch":
        """The events from `start` up to but not including `end`."""
        return Batch(self.places[start:end], self.rows[start:end], self.spoken[start:end])

    def add(self, place: int, delivery: Delivery) -> None:
        """Read one more. Raises `ContractError` for what is no event."""
        event = read_event(delivery.subject, delivery.data)
        self.rows.append(
            (
                event.id,
                delivery.stream_sequence,
                event.sequence,
                event.time,
                event.project,
                event.subject,
                event.type,
                event.source,
                event.taskid,
                event.sandboxid,
                delivery.data.decode(),
            )
        )
        self.places.append(place)
        self.spoken.append(None if event.type.startswith("agent.") else event)
        if event.type in TOLD:
            self.told.append((place, event))


def columns(rows: Sequence[Row]) -> list[list[Any]]:
    """The rows as one list for each column, as `unnest` takes them."""
    return [list(column) for column in zip(*rows, strict=True)]
