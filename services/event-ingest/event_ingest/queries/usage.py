"""`usage`: what did agents spend, by project, label, task, day or model?"""

from typing import Any, Final

from event_ingest.database import Connection
from event_ingest.queries.grouped_sums import conditions, limited_sum, sums_of, total_columns, totals_of
from sandherd.contracts.events.agent import AgentUsage
from sandherd.contracts.requests import GetUsage, GroupUsage, Usage, UsageList
from sandherd.contracts.requests.usage import UsageGroup

_FIRST_CONDITION_PARAMETER: Final = 3
_COUNTED_COLUMNS: Final = tuple(Usage.model_fields)
_SUMS: Final = ", ".join(limited_sum(f"coalesce((data ->> '{name}')::bigint, 0)", name) for name in _COUNTED_COLUMNS)
_TOTALS: Final = total_columns(_COUNTED_COLUMNS)
_GROUPS: Final[dict[UsageGroup, str]] = {
    "project": "e.project",
    "task": "b.task",
    "day": "to_char(e.time at time zone 'UTC', 'YYYY-MM-DD')",
    "model": "left(data ->> 'model', 100)",
    "label": "t.labels ->> $2",
}
"""The SQL expression of each grouping. An agent may publish any name of a model, so its length is limited."""


async def add_up_usage(connection: Connection, request: GetUsage, project: str, _max_bytes: int) -> UsageList:
    """The usage by group. At most `MAX_GROUPS` short rows, which fit in a reply."""
    of_events, of_tasks = conditions(request, project, _FIRST_CONDITION_PARAMETER)
    statement = _statement(request.by, str(of_events), str(of_tasks))
    rows = await connection.fetch(statement, request.limit, request.label, *of_events.values, *of_tasks.values)
    return UsageList(
        groups=[_group(row) for row in rows],
        total=Usage(**totals_of(rows, _COUNTED_COLUMNS)),
        group_count=rows[0]["group_count"] if rows else 0,
        since=request.since,
    )


def _statement(by: UsageGroup, of_events: str, of_tasks: str) -> str:
    project = "e.project" if by == "task" else "null::text"
    order = "grouped asc" if by == "day" else "cost_micro_usd desc, input_tokens desc, grouped asc"
    # Every grouping uses `$2`, the label, because Postgres must find the type of each parameter.
    return f"""
with spent as materialized (
    select e.project, e.entity, e.time, e.envelope -> 'data' as data
    from events e where e.type = '{AgentUsage.type}' {of_events}
), grouped as (
    select {_GROUPS[by]} as grouped, {project} as of_project, {_SUMS}
    from spent e
    left join sandboxes b on b.project = e.project and b.sandbox = e.entity
    left join tasks t on t.project = b.project and t.task = b.task
    where ($2::text is null or true) {of_tasks}
    group by 1, 2
)
select *, {_TOTALS}, count(*) over () as group_count from grouped order by {order} limit $1
"""  # noqa: S608  # constant names and placeholders


def _group(row: Any) -> GroupUsage:
    return GroupUsage(group=row["grouped"], project=row["of_project"], **sums_of(row, _COUNTED_COLUMNS))
