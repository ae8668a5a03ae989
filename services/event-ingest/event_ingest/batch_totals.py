"""What a batch adds to the numbers of its sources and projects, if all of its events are new. Pure."""

from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from event_ingest.event_rows import ERRORS, EventBatch, Row, columns
from event_ingest.projections import CLOSING, CLOSING_ALONE
from sandherd.contracts.events.agent import AgentHeartbeat, AgentTurnStarted
from sandherd.contracts.events.tools import AgentToolUse
from sandherd.contracts.model import MAX_WHOLE

SOURCE_TYPES: Final = (
    *("text", "text", "text", "bigint", "bigint", "bigint", "bigint", "timestamptz"),
    *("bigint", "timestamptz", "timestamptz"),
)
"""The types of a source's values in the statement, as `SourceTotals.row` has them."""
RATE_TYPES: Final = ("text", "bigint", "bigint", "bigint", "bigint", "bigint")
"""The types of a project's values in the statement."""
_CLOSING: Final = frozenset(CLOSING)
_CLOSING_ALONE: Final = frozenset(CLOSING_ALONE)
_RATED: Final = {AgentTurnStarted.type: 1, AgentToolUse.type: 2} | dict.fromkeys(ERRORS, 3)
"""By type, the place of its number in a project's row."""


@dataclass(slots=True)
class SourceTotals:
    """What a batch adds to one source."""

    last_at: datetime
    stored: int = 0
    highest: int = 0
    sequence_sum: int = 0
    closing: int = 0
    heartbeats: list[datetime] = field(default_factory=list)

    def add(self, type_: str, sequence: int, time: datetime) -> None:
        """One more event."""
        self.stored += 1
        self.sequence_sum += sequence
        self.highest = max(self.highest, sequence)
        self.last_at = max(self.last_at, time)
        if type_ == AgentHeartbeat.type:
            self.heartbeats.append(time)
        elif type_ in _CLOSING or (sequence == 1 and type_ in _CLOSING_ALONE):
            self.closing = max(self.closing, sequence)

    def row(self) -> Row:
        """The values, after the source's own."""
        beats = self.heartbeats
        first, last = (min(beats), max(beats)) if beats else (None, None)
        numbers = self.stored, self.highest, self.sequence_sum, self.closing
        return *numbers, self.last_at, len(beats), first, last


def batch_totals(batch: EventBatch) -> list[list[Any]]:
    """The values of `COUNT_NEW`, column by column: those of each source, then those of each project."""
    sources: dict[tuple[str, str, str], SourceTotals] = {}
    for _, _, sequence, time, project, entity, type_, source, *_ in batch.rows:
        key = project, source, entity
        totals = sources.get(key)
        if totals is None:
            totals = sources[key] = SourceTotals(time)
        totals.add(type_, sequence, time)
    return columns([(*key, *totals.row()) for key, totals in sources.items()]) + columns(_rates(batch))


def _rates(batch: EventBatch) -> list[Row]:
    """For each project its events, turns, calls of tools, errors and micro-dollars."""
    numbers: dict[str, list[int]] = {}
    for (project, type_), count in Counter((row[4], row[6]) for row in batch.rows).items():
        totals = numbers.setdefault(project, [0, 0, 0, 0, 0])
        totals[0] += count
        if (place := _RATED.get(type_)) is not None:
            totals[place] += count
    for row in batch.rows if batch.costs else ():
        totals = numbers[row[4]]
        totals[4] = min(totals[4] + batch.costs.get(row[0], 0), MAX_WHOLE)
    return [(project, *totals) for project, totals in numbers.items()]
