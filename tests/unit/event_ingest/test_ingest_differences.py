"""The differences between rows of the read tables and what events result in."""

from dataclasses import asdict

from event_ingest.projections import Projections
from event_ingest.read_models import TaskRow
from event_ingest.verification import TABLES, compare_rows, compare_totals, incomplete_pairs

TASKS = TABLES[0]
KEY = ("p", "/s", "task-1")


def test_json_is_compared_by_its_meaning() -> None:
    """Postgres stores `jsonb` in its own order and spacing, which is not a difference. Another value is one."""
    projected = Projections(tasks={("p", "task-1"): TaskRow("p", "task-1", labels='{"b": 1, "a": 2}', attempt=2)})
    stored = asdict(TaskRow("p", "task-1", labels='{"a":2,"b":1}'))
    [found] = compare_rows(TASKS, [stored], projected, {("p", "task-1")})
    assert (found.field, found.stored, found.by_events) == ("attempt", "1", "2")


def test_row_of_another_entity_is_not_compared() -> None:
    """A row of another entity is not compared, because not all events of that entity were read."""
    projected = Projections(tasks={("p", "task-2"): TaskRow("p", "task-2")})
    assert list(compare_rows(TASKS, [], projected, {("p", "task-1")})) == []


def test_entity_with_fewer_events_than_were_counted_is_incomplete() -> None:
    """An entity whose days were dropped is incomplete: not a difference. More events than were counted are one."""
    assert incomplete_pairs({KEY: (3, 3, 6)}, {KEY: (2, 3, 5)}) == {("p", "task-1")}
    assert incomplete_pairs({KEY: (2, 2, 3)}, {KEY: (3, 3, 6)}) == set()
    assert incomplete_pairs({KEY: (2, 2, 3)}, {}) == {("p", "task-1")}
    assert list(compare_totals({KEY: (3, 3, 6)}, {KEY: (2, 3, 5)})) == []
    assert [one.field for one in compare_totals({KEY: (2, 3, 5)}, {KEY: (3, 3, 6)})] == ["stored", "sequence_sum"]
