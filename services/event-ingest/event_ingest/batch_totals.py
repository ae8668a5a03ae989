"""The totals of a batch by source and by project, if all of its events are new. Pure."""

from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from event_ingest.event_rows import COUNTED_TYPES, EventBatch, Row, columns
from event_ingest.projections import CLOSING, CLOSING_ALONE
from sandherd.contracts.events.agent import AgentHeartbeat
from sandherd.contracts.model import MAX_WHOLE

SOURCE_TYPES: Final = (
    *("text", "text", "text", "bigint", "bigint", "bigint", "bigint", "timestamptz"),
    *("bigint", "timestamptz", "timestamptz"),
)
"""The SQL types of a source's row: the types of its key, then those of the values of `SourceTotals.row`."""
RATE_TYPES: Final = ("text", "bigint", "bigint", "bigint", "bigint", "bigint")
"""The SQL types of a project's row, as `_rates` returns it."""
_CLOSING: Final = frozenset(CLOSING)
_CLOSING_ALONE: Final = frozenset(CLOSING_ALONE)
_COUNT_INDEX: Final = {name: index for index, types in enumerate(COUNTED_TYPES.values(), 1) for name in types}
"""By type of event: the index of its number among the totals of a project."""


@dataclass(slots=True)
class SourceTotals:
    """The totals of one source in a batch."""

    last_at: datetime
    stored: int = 0
    highest: int = 0
    sequence_sum: int = 0
    closing: int = 0
    heartbeats: list[datetime] = field(default_factory=list)

    def add(self, type_: str, sequence: int, time: datetime) -> None:
        """Count one event."""
        self.stored += 1
        self.sequence_sum += sequence
        self.highest = max(self.highest, sequence)
        self.last_at = max(self.last_at, time)
        if type_ == AgentHeartbeat.type:
            self.heartbeats.append(time)
        elif type_ in _CLOSING or (sequence == 1 and type_ in _CLOSING_ALONE):
            self.closing = max(self.closing, sequence)

    def row(self) -> Row:
        """The values that follow the key in a source's row."""
        beats = self.heartbeats
        first, last = (min(beats), max(beats)) if beats else (None, None)
        numbers = self.stored, self.highest, self.sequence_sum, self.closing
        return *numbers, self.last_at, len(beats), first, last


def batch_totals(batch: EventBatch) -> list[list[Any]]:
    """The parameters of `COUNT_NEW`, one list for each column: first of the sources, then of the projects."""
    sources: dict[tuple[str, str, str], SourceTotals] = {}
    for _, _, sequence, time, project, entity, type_, source, *_ in batch.rows:
        key = project, source, entity
        totals = sources.get(key)
        if totals is None:
            totals = sources[key] = SourceTotals(time)
        totals.add(type_, sequence, time)
    return columns([(*key, *totals.row()) for key, totals in sources.items()]) + columns(_rates(batch))


def _rates(batch: EventBatch) -> list[Row]:
    """By project: the numbers of events, turns, tool calls and errors, and the cost in millionths of a US dollar."""
    numbers: dict[str, list[int]] = {}
    for (project, type_), count in Counter((row[4], row[6]) for row in batch.rows).items():
        totals = numbers.setdefault(project, [0, 0, 0, 0, 0])
        totals[0] += count
        if (index := _COUNT_INDEX.get(type_)) is not None:
            totals[index] += count
    for row in batch.rows if batch.costs else ():
        totals = numbers[row[4]]
        totals[4] = min(totals[4] + batch.costs.get(row[0], 0), MAX_WHOLE)
    return [(project, *totals) for project, totals in numbers.items()]
