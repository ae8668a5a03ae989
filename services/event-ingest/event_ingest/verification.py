"""The differences between the rows of the read tables and the rows that result from the events. Pure."""

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any, Final

from event_ingest.projections import Projections
from event_ingest.read_models import ApprovalRow, MessageRow, ReadModelRow, SandboxRow, TaskRow
from sandherd.contracts.requests import HistoryDifference

Pair = tuple[str, str]
"""A project, and a task or sandbox in it."""
Totals = Mapping[tuple[str, str, str], tuple[int, int, int]]
"""By project, source and entity: the number of events, their highest sequence, and the sum of their sequences."""

_MAX_TEXT_CHARACTERS: Final = 300
_JSON_COLUMNS: Final = frozenset({"result", "depends_on", "labels"})
_MISSING: Final = "a row"
"""The text of a difference for a row that exists on one side only."""


@dataclass(frozen=True)
class ReadTable:
    """A read table: the class of its rows, the columns of its key, and the column with the entity of a row's events."""

    name: str
    row: type[ReadModelRow]
    key: tuple[str, ...]
    entity: str


TABLES: Final = (
    ReadTable("tasks", TaskRow, ("project", "task"), "task"),
    ReadTable("sandboxes", SandboxRow, ("project", "sandbox"), "sandbox"),
    ReadTable("messages", MessageRow, ("project", "message"), "sandbox"),
    ReadTable("approvals", ApprovalRow, ("project", "sandbox", "approval"), "sandbox"),
)


def compare_rows(
    table: ReadTable, stored: Iterable[Mapping[str, Any]], projected: Projections, pairs: Collection[Pair]
) -> Iterator[HistoryDifference]:
    """The differences of a table, for these entities only, because not all events of other entities were read."""
    expected = expected_rows(table, projected, pairs)
    for row in stored:
        key = tuple(row[name] for name in table.key)
        by_events = expected.pop(key, None)
        if by_events is None:
            yield _difference(table.name, key, "", _MISSING, None)
            continue
        for column in fields(table.row):
            value, computed = row[column.name], getattr(by_events, column.name)
            if not _are_equal(column.name, value, computed):
                yield _difference(table.name, key, column.name, value, computed)
    for key in expected:
        yield _difference(table.name, key, "", None, _MISSING)


def expected_rows(table: ReadTable, projected: Projections, pairs: Collection[Pair]) -> dict[tuple[str, ...], Any]:
    """The rows of a table that result from the events, by key, for these entities only."""
    return {
        key: row
        for key, row in getattr(projected, table.name).items()
        if (row.project, getattr(row, table.entity)) in pairs
    }


def compare_totals(
    totals: Totals,
    counted: Totals,
) -> Iterator[HistoryDifference]:
    """The differences of the table `sources`.

    It is not a difference if fewer events are stored than `sources` states, because dropping days does not change it.
    """
    no_events = (0, 0, 0)
    for key in sorted(totals.keys() | counted.keys()):
        if totals.get(key, no_events)[0] > counted.get(key, no_events)[0]:
            continue
        columns = zip(
            ("stored", "highest", "sequence_sum"), totals.get(key, no_events), counted.get(key, no_events), strict=True
        )
        for column, value, computed in columns:
            if value != computed:
                yield _difference("sources", key, column, value, computed)


def incomplete_pairs(
    totals: Totals,
    counted: Totals,
) -> set[Pair]:
    """The entities that have fewer events stored than `sources` states, because days were dropped."""
    return {
        (project, entity)
        for (project, source, entity), (number, *_) in totals.items()
        if number > counted.get((project, source, entity), (0,))[0]
    }


def _are_equal(column: str, stored: Any, computed: Any) -> bool:
    if column in _JSON_COLUMNS and stored is not None and computed is not None:
        return bool(json.loads(stored) == json.loads(computed))
    return bool(stored == computed)


def _difference(table: Any, key: tuple[str, ...], field: str, stored: Any, by_events: Any) -> HistoryDifference:
    return HistoryDifference(
        table=table,
        project=key[0],
        name=" ".join(key[1:]),
        field=field,
        stored=_as_text(stored),
        by_events=_as_text(by_events),
    )


def _as_text(value: Any) -> str | None:
    if value is None:
        return None
    return (value.isoformat() if isinstance(value, datetime) else str(value))[:_MAX_TEXT_CHARACTERS]
