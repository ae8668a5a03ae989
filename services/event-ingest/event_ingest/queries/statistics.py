"""`statistics` and `overview`: what did agents do and spend, and what is the state of a project?"""

from datetime import UTC, datetime, timedelta
from typing import Any, Final

from event_ingest.database import Connection
from event_ingest.event_rows import COUNTED_TYPES
from event_ingest.queries.grouped_sums import conditions, limited_sum, sums_of, total_columns, totals_of
from event_ingest.queries.pages import project_filter
from sandherd.contracts.events.agent import AgentUsage
from sandherd.contracts.model import MAX_WHOLE
from sandherd.contracts.requests import (
    GetOverview,
    GetStatistics,
    GroupStatistics,
    ProjectOverview,
    RateBucket,
    Statistics,
    StatisticsList,
    Usage,
    UserNeed,
)
from sandherd.contracts.requests.statistics import StatisticGroup
from sandherd.contracts.states import SANDBOX_ENDED, TASK_ENDED, SandboxState, TaskState

_FIRST_CONDITION_PARAMETER: Final = 2
_USAGE_COLUMNS: Final = tuple(Usage.model_fields)
_COUNTED_COLUMNS: Final = (*_USAGE_COLUMNS, *COUNTED_TYPES)


def _quoted_list(values: Any) -> str:
    return ", ".join(f"'{value}'" for value in values)


_TYPES: Final = _quoted_list(name for types in COUNTED_TYPES.values() for name in types)
_DAY: Final = "to_char(e.time at time zone 'UTC', 'YYYY-MM-DD')"
_GROUPS: Final[dict[StatisticGroup, str]] = {
    "project": "p.project",
    "task": "b.task",
    "harness": "t.harness",
    "model": "p.model",
    "day": "p.day",
}
"""The SQL expression of each grouping."""
# Names of models are limited to what a reply can have: a sandbox may report any, and must not make the request fail.
_AMOUNTS: Final = ", ".join(f"sum(coalesce((data ->> '{name}')::numeric, 0)) as {name}" for name in _USAGE_COLUMNS)
_NUMBERS: Final = ", ".join(
    f"sum(number) filter (where type in ({_quoted_list(types)})) as {name}" for name, types in COUNTED_TYPES.items()
)
_SUMS: Final = ", ".join(limited_sum(f"coalesce({name}, 0)", name) for name in _COUNTED_COLUMNS)
_TOTALS: Final = total_columns(_COUNTED_COLUMNS)
_NO_AMOUNTS: Final = ", ".join("0::numeric" for _ in _USAGE_COLUMNS)
_NO_NUMBERS: Final = ", ".join("0::numeric" for _ in COUNTED_TYPES)


async def count_statistics(
    connection: Connection, request: GetStatistics, project: str, _max_bytes: int
) -> StatisticsList:
    """The statistics by group. At most `MAX_GROUPS` short rows, which fit in a reply."""
    of_events, of_tasks = conditions(request, project, _FIRST_CONDITION_PARAMETER)
    statement = _statement(request.by, str(of_events), str(of_tasks))
    rows = await connection.fetch(statement, request.limit, *of_events.values, *of_tasks.values)
    return StatisticsList(
        groups=[_group(row) for row in rows],
        total=Statistics(**totals_of(rows, _COUNTED_COLUMNS)),
        group_count=rows[0]["group_count"] if rows else 0,
        since=request.since,
    )


def _statement(by: StatisticGroup, of_events: str, of_tasks: str) -> str:
    day = _DAY if by == "day" else "null::text"
    project = "p.project" if by == "task" else "null::text"
    order = "grouped asc" if by == "day" else "cost_micro_usd desc, input_tokens desc, tool_calls desc, grouped asc"
    return f"""
with reported as materialized (
    select e.project, e.entity, e.time, {day} as day, e.envelope -> 'data' as data
    from events e where e.type = '{AgentUsage.type}' {of_events}
), spent as (
    select project, entity, day, left(data ->> 'model', 100) as model, max(time) as last_at, {_AMOUNTS}
    from reported group by 1, 2, 3, 4
), done as (
    select e.project, e.entity, {day} as day, e.type, count(*) as number
    from events e where e.type in ({_TYPES}) {of_events} group by 1, 2, 3, 4
), last_model as (
    select distinct on (project, entity) project, entity, model from spent order by project, entity, last_at desc
), parts as (
    select project, entity, day, model, {", ".join(_USAGE_COLUMNS)}, {_NO_NUMBERS} from spent
    union all
    select d.project, d.entity, d.day, m.model, {_NO_AMOUNTS}, {_NUMBERS}
    from done d left join last_model m using (project, entity) group by 1, 2, 3, 4
), grouped as (
    select {_GROUPS[by]} as grouped, {project} as of_project, {_SUMS}
    from parts as p (project, entity, day, model, {", ".join(_COUNTED_COLUMNS)})
    left join sandboxes b on b.project = p.project and b.sandbox = p.entity
    left join tasks t on t.project = b.project and t.task = b.task
    where true {of_tasks}
    group by 1, 2
)
select *, {_TOTALS}, count(*) over () as group_count from grouped order by {order} limit $1
"""  # noqa: S608  # constant names and placeholders


def _group(row: Any) -> GroupStatistics:
    return GroupStatistics(group=row["grouped"], project=row["of_project"], **sums_of(row, _COUNTED_COLUMNS))


_UNFINISHED_TASKS: Final = _quoted_list(sorted(set(TaskState) - TASK_ENDED))
_ENDED_SANDBOXES: Final = _quoted_list(sorted(SANDBOX_ENDED, reverse=True))
_UNFINISHED_SANDBOXES: Final = f"state not in ({_ENDED_SANDBOXES})"
_OF_PROJECT: Final = "($1::text is null or project = $1)"
_TASKS_BY_STATE: Final = f"""
select state, count(*) as number from (
    select state from tasks where {_OF_PROJECT} and state in ({_UNFINISHED_TASKS})
    union all
    select state from tasks where {_OF_PROJECT} and submitted_at >= $2 and state in ({_quoted_list(sorted(TASK_ENDED))})
) as counted group by state
"""  # noqa: S608  # constant names
_SANDBOXES_BY_STATE: Final = f"""
select state, count(*) as number from (
    select state from sandboxes where {_OF_PROJECT} and {_UNFINISHED_SANDBOXES}
    union all
    select state from sandboxes where {_OF_PROJECT} and requested_at >= $2 and state in ({_ENDED_SANDBOXES})
) as counted group by state
"""  # noqa: S608  # constant names
_BUCKETS: Final = f"""
select date_bin(make_interval(secs => $3), minute, 'epoch') as begins_at, sum(events)::bigint as events,
    sum(turns)::bigint as turns, sum(tool_calls)::bigint as tool_calls, sum(errors)::bigint as errors,
    least(sum(cost_micro_usd), {MAX_WHOLE})::bigint as cost_micro_usd
from event_rates where {_OF_PROJECT} and minute >= $2 group by 1 order by 1
"""  # noqa: S608  # constant names
# Approvals are first in the list, then paused sandboxes, then failed tasks; within a kind, the oldest is first.
_NEEDS: Final = f"""
with pending as (
    select 1 as rank, 'approval' as kind, a.project, b.task, a.sandbox, a.approval as approval_id,
        a.requested_at as since, left(a.tool, 300) as text
    from approvals a left join sandboxes b using (project, sandbox)
    where a.state = 'pending' and a.requested_at is not null and ($1::text is null or a.project = $1)
), paused as (
    select 2, 'paused', project, task, sandbox, null, state_at, left(reason, 300) from sandboxes
    where {_OF_PROJECT} and {_UNFINISHED_SANDBOXES} and state = '{SandboxState.PAUSED}'
), failed as (
    select 3, 'failed', project, task, sandbox, null, state_at, left(error, 300) from tasks
    where {_OF_PROJECT} and submitted_at >= $2 and state = '{TaskState.FAILED}'
)
select *, count(*) over () as available from (
    select * from pending union all select * from paused union all select * from failed
) as need order by rank, since, sandbox limit $3
"""  # noqa: S608  # constant names


async def show_overview(connection: Connection, request: GetOverview, project: str, _max_bytes: int) -> ProjectOverview:
    """The state of a project: tasks and sandboxes that have not ended or began in the interval, and its event rates."""
    until = datetime.now(UTC)
    since = _first_bucket(until - request.interval, request.bucket_seconds)
    scope = project_filter(project), since
    needs = await connection.fetch(_NEEDS, *scope, max(1, request.needs))
    return ProjectOverview(
        tasks=await _by_state(connection, _TASKS_BY_STATE, scope),
        sandboxes=await _by_state(connection, _SANDBOXES_BY_STATE, scope),
        needs=[_user_need(row) for row in needs[: request.needs]],
        need_count=needs[0]["available"] if needs else 0,
        buckets=[RateBucket(**row) for row in await connection.fetch(_BUCKETS, *scope, float(request.bucket_seconds))],
        bucket_seconds=request.bucket_seconds,
        since=since,
        until=until,
    )


def _first_bucket(since: datetime, seconds: int) -> datetime:
    """The beginning of the bucket that contains the time `since`. Pure."""
    return since - timedelta(seconds=since.timestamp() % seconds)


async def _by_state(connection: Connection, statement: str, scope: tuple[Any, ...]) -> dict[str, int]:
    return {row["state"]: row["number"] for row in await connection.fetch(statement, *scope) if row["state"]}


def _user_need(row: Any) -> UserNeed:
    names = ("kind", "project", "task", "sandbox", "approval_id", "since")
    return UserNeed(**{name: row[name] for name in names}, text=row["text"] or "")
