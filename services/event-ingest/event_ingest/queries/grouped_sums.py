"""Sums by group, with their totals: what the requests `usage` and `statistics` have in common."""

import json
from collections.abc import Iterable, Sequence
from typing import Any

from event_ingest.queries.pages import Conditions, project_filter
from sandherd.contracts.model import MAX_WHOLE
from sandherd.contracts.requests import GetStatistics, GetUsage


def conditions(request: GetUsage | GetStatistics, project: str, first: int) -> tuple[Conditions, Conditions]:
    """The conditions for events, and those for their tasks. Their placeholders begin with the number `first`."""
    of_events = Conditions(first)
    if project_filter(project) is not None:
        of_events.add("e.project = {}", project)
    if request.since is not None:
        of_events.add("e.time >= {}", request.since)
    if request.until is not None:
        of_events.add("e.time < {}", request.until)
    of_tasks = Conditions(first + len(of_events.values))
    if isinstance(request, GetUsage) and request.labels:
        of_tasks.add("t.labels @> {}::jsonb", json.dumps(request.labels))
    if request.tasks:
        of_tasks.add("b.task = any({}::text[])", request.tasks)
    return of_events, of_tasks


def limited_sum(expression: str, name: str) -> str:
    """The SQL column `name` with the sum of an expression. It is limited to what a reply can have.

    A sandbox may report any amount, and must not make the request fail.
    """
    return f"least(sum({expression}), {MAX_WHOLE}) as {name}"


def total_columns(names: Iterable[str]) -> str:
    """The SQL expressions of the totals of these columns over all groups."""
    return ", ".join(f"least(sum({name}) over (), {MAX_WHOLE})::bigint as total_{name}" for name in names)


def sums_of(row: Any, names: Iterable[str]) -> dict[str, int]:
    """The sums of a group."""
    return {name: int(row[name]) for name in names}


def totals_of(rows: Sequence[Any], names: Iterable[str]) -> dict[str, int]:
    """The totals over all groups. Each row has them; without a row there are none."""
    return {name: int(rows[0][f"total_{name}"]) for name in names} if rows else {}
