"""Parses deliveries into rows of the table `events`. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import UUID

from event_ingest.artifacts.references import MARK, ArtifactRow, referred_artifacts
from event_ingest.canonical_events import CanonicalEvent, ParsedEvent, read_canonical
from sandherd.bus.consumers.consumer import Delivery
from sandherd.contracts.decoder import read_event
from sandherd.contracts.envelope import Envelope
from sandherd.contracts.events import EVENTS, EventData
from sandherd.contracts.events.agent import AgentTurnStarted, AgentUsage
from sandherd.contracts.events.tools import AgentToolUse

Row = tuple[Any, ...]
"""The values of one row, in the order of `COLUMNS`."""

MEASURED: Final = frozenset(name for name, model in EVENTS.items() if model.measured)
"""The types of agents' events from which metrics and spans are made: `AgentMetrics` has a handler for each."""

ERRORS: Final = tuple(name for name, model in EVENTS.items() if model.counts_as_error)
"""The types of events that count as errors in statistics."""

COUNTED_TYPES: Final[Mapping[str, tuple[str, ...]]] = {
    "turns": (AgentTurnStarted.type,),
    "tool_calls": (AgentToolUse.type,),
    "errors": ERRORS,
}
"""By number of the statistics, in the order of the table `event_rates`: the types of the events that it counts.

The index `events_of_activity` has these types: another type needs a migration that creates the index again. The numbers
that are stored in `event_rates` do not change afterwards.
"""

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
    ("size", "integer"),
)
"""Each column's name, and its type in the statement."""
TYPE_INDEX: Final = [name for name, _ in COLUMNS].index("type")
"""The index of the event's type in a row."""


@dataclass(slots=True)
class EventBatch:
    """Parsed events as parallel lists: index among the deliveries, row, and the event if a service has published it.

    It has only the needed parts of an event, because most of a busy herd's load is here.
    """

    indexes: list[int] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    short: list[Row | None] = field(default_factory=list)
    """Each row in its short form (`short_rows`), if that is known."""
    service_events: list[Envelope[EventData] | None] = field(default_factory=list)
    costs: dict[UUID, int] = field(default_factory=dict)
    """By id of an event: the cost of the usage of a model, in micro-dollars."""
    measured: list[tuple[int, ParsedEvent]] = field(default_factory=list)
    """The agents' events that are measured and traced, with their indexes; empty in a part of a batch."""
    artifacts: dict[UUID, list[ArtifactRow]] = field(default_factory=dict)
    """By id of an event: the artifacts that it refers to."""

    def __len__(self) -> int:
        return len(self.rows)

    def part(self, start: int, end: int) -> "EventBatch":
        """The events from `start` up to but not including `end`."""
        return EventBatch(
            self.indexes[start:end],
            self.rows[start:end],
            self.short[start:end],
            self.service_events[start:end],
            self.costs,
            artifacts=self.artifacts,
        )

    def add(self, index: int, delivery: Delivery) -> None:
        """Parse and add the event of a delivery. Raises `ContractError` if it is invalid."""
        event = read_canonical(delivery.subject, delivery.data) or read_event(delivery.subject, delivery.data)
        row = (
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
            len(delivery.data),
        )
        self.rows.append(row)
        self.indexes.append(index)
        if isinstance(event, CanonicalEvent):
            self.service_events.append(None)
            # Empty texts rather than nulls: a row without nulls needs 8 bytes less.
            self.short.append((*row[:7], "", event.taskid or "", "", event.short, row[-1]))
        else:
            self.service_events.append(None if event.type.startswith("agent.") else event)
            self.short.append(None)
        if MARK in delivery.data and (referred := list(referred_artifacts(event))):
            self.artifacts[event.id] = referred
        if event.type in MEASURED:
            self.measured.append((index, event))
            if isinstance(event.data, AgentUsage):
                self.costs[event.id] = event.data.cost_micro_usd

    def referred(self) -> list[ArtifactRow]:
        """The artifacts that events of this batch refer to."""
        if not self.artifacts:
            return []
        return [artifact for row in self.rows for artifact in self.artifacts.get(row[0], ())]


def columns(rows: Sequence[Row]) -> list[list[Any]]:
    """The rows as one list for each column, as `unnest` takes them."""
    return [list(column) for column in zip(*rows, strict=True)]
