"""Handles the requests about retention: shows when days are dropped or reduced, and sets and releases holds."""

from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from event_ingest.database import Connection
from event_ingest.ended_task_cleanup import TASK_STATES, expires_at
from event_ingest.history_partitions import (
    REDUCTIONS,
    Partition,
    read_contents,
    read_not_before,
    read_partitions,
    read_projects,
    use_indexes,
)
from event_ingest.history_policy import RetentionPolicy, contents_due_at, days_ahead, first_due_at, next_reduction
from event_ingest.queries.archive import RESTORE_COLUMNS
from sandherd.contracts.errors import Code, ContractError
from sandherd.contracts.names import FLEET
from sandherd.contracts.requests import (
    ArchiveProblem,
    ArtifactStoreStatus,
    GetHistoryStatus,
    HistoryDay,
    HistoryHold,
    HistoryRestore,
    HistoryStatus,
    HoldHistory,
    HoldReleased,
    ProjectDays,
    ReleaseHistory,
    TypeDays,
)
from sandherd.contracts.requests.archive import MAX_RESTORES
from sandherd.contracts.requests.retention import MAX_HOLDS, MAX_LISTED_DAYS

_HOLDS: Final = (
    "select project, nullif(task, '') as task, reason, held_by, held_at from history_holds order by project, task"
)
_PROBLEMS: Final = "select day, problem, since from history_archive_problems order by day limit $1"
_REDUCTIONS: Final = "select day, removed, types as removed_types, reduced_at from history_reductions"
# Postgres reads this from an index.
_OLDEST_TASK: Final = f"select min(state_at) from tasks where state in ({TASK_STATES})"  # noqa: S608  # our own names
_RESTORES: Final = (
    f"select {RESTORE_COLUMNS} from history_restores "  # noqa: S608  # our own names
    "order by day, project limit $1"
)
_ARTIFACTS: Final = """
select contents, bytes, waiting, over_limit, lost, problem
from (select count(*) as contents, coalesce(sum(bytes), 0)::bigint as bytes from artifact_contents) c,
    (select count(*) filter (where not lost) as waiting, count(*) filter (where over_limit and not lost) as over_limit,
        count(*) filter (where lost) as lost,
        (array_agg(problem order by referred_at) filter (where not lost and problem is not null))[1] as problem
    from artifacts where stored_at is null) w
"""
_HOLD: Final = """
insert into history_holds as h (project, task, reason, held_by)
select $1, $2, $3, $4 where (select count(*) from history_holds) < $5
    or exists (select from history_holds where project = $1 and task = $2)
on conflict (project, task) do update set reason = excluded.reason, held_by = excluded.held_by
returning project, nullif(task, '') as task, reason, held_by, held_at
"""


async def show_status(
    policy: RetentionPolicy,
    connection: Connection,
    _request: GetHistoryStatus,
    _project: str,
    _max_bytes: int,
    *,
    archive: str | None = None,
    artifacts: str | None = None,
) -> HistoryStatus:
    """The retention of the whole history; the project of the request is ignored."""
    async with connection.transaction(readonly=True):
        await use_indexes(connection)
        partitions = (await read_partitions(connection))[:MAX_LISTED_DAYS]
        not_before = await read_not_before(connection)
        reduced_from = await read_not_before(connection, REDUCTIONS)
        days = [await _describe(connection, partition, policy, not_before, reduced_from) for partition in partitions]
        days = await _with_reductions(connection, days, policy, reduced_from)
        holds: Sequence[Any] = await connection.fetch(_HOLDS)
        problems: Sequence[Any] = await connection.fetch(_PROBLEMS, MAX_LISTED_DAYS) if archive else []
        restores: Sequence[Any] = await connection.fetch(_RESTORES, MAX_RESTORES)
        ended_at: datetime | None = await connection.fetchval(_OLDEST_TASK)
        stored: Any = await connection.fetchrow(_ARTIFACTS) if artifacts else None
    days_with_partition = {partition.day for partition in partitions if partition.day is not None}
    return HistoryStatus(
        days=policy.days,
        project_days=[ProjectDays(project=name, days=count) for name, count in sorted(policy.project_days.items())],
        type_days=[TypeDays(type=name, days=count) for name, count in sorted(policy.type_days.items()) if count],
        task_days=policy.task_days,
        next_task_at=None if ended_at is None else expires_at(ended_at, policy),
        not_before=not_before,
        next_drop_at=min((day.due_at for day in days if day.due_at is not None and not day.held), default=None),
        next_reduction_at=min(
            (day.next_reduction_at for day in days if day.next_reduction_at is not None and not day.held), default=None
        ),
        bytes=sum(partition.bytes for partition in partitions),
        days_ahead=days_ahead(days_with_partition, datetime.now(UTC).date()),
        partitions=days,
        holds=[HistoryHold(**row) for row in holds],
        archive=archive,
        archive_problems=[ArchiveProblem(**row) for row in problems],
        restores=[HistoryRestore(**row) for row in restores],
        artifacts=ArtifactStoreStatus(location=artifacts, **stored) if artifacts else None,
    )


async def _describe(
    connection: Connection, partition: Partition, policy: RetentionPolicy, not_before: datetime, reduced_from: datetime
) -> HistoryDay:
    history_day = HistoryDay(day=partition.day, events=partition.events, bytes=partition.bytes)
    if partition.day is None:
        return history_day
    contents = await read_contents(connection, partition.day, policy)
    due = contents_due_at(partition.day, contents, policy, not_before)
    # A project whose events of the day are only summaries has nothing that could be removed.
    projects = await read_projects(connection, partition.day) if policy.varies else []
    first = first_due_at(partition.day, projects, policy, max(reduced_from, contents.restored_until or reduced_from))
    reduction = first if first is not None and (due is None or first < due) else None
    return history_day.model_copy(update={"due_at": due, "held": contents.held, "next_reduction_at": reduction})


async def _with_reductions(
    connection: Connection, days: Sequence[HistoryDay], policy: RetentionPolicy, not_before: datetime
) -> list[HistoryDay]:
    """The days, with what was removed from each, and when more will be removed."""
    reductions: Mapping[Any, Any] = {row["day"]: dict(row) for row in await connection.fetch(_REDUCTIONS)}
    updated = []
    for day in days:
        reduction_row = reductions.get(day.day, {})
        types: Collection[str] = reduction_row.get("removed_types", ())
        due = None if day.day is None else next_reduction([day.day], {day.day: types}, policy, not_before)
        due = min((at for at in (due, day.next_reduction_at) if at is not None), default=None)
        updated.append(day.model_copy(update={**reduction_row, "next_reduction_at": due}))
    return updated


async def hold(connection: Connection, request: HoldHistory, project: str, _max_bytes: int) -> HistoryHold:
    """Add a hold, or change the reason and holder of an existing one.

    Raises `ContractError` if a new hold would exceed `MAX_HOLDS`, or the request names no project.
    """
    _check_project(project)
    values = project, request.task or "", request.reason, request.held_by
    row: Any = await connection.fetchrow(_HOLD, *values, MAX_HOLDS)
    if row is None:
        raise ContractError(
            Code.REFUSED, f"there are {MAX_HOLDS} holds, the maximum", remedy="hold projects in place of their tasks"
        )
    return HistoryHold(**row)


async def release(connection: Connection, request: ReleaseHistory, project: str, _max_bytes: int) -> HoldReleased:
    """Remove a hold, if there is one. Raises `ContractError` if the request names no project."""
    _check_project(project)
    command_tag = await connection.execute(
        "delete from history_holds where project = $1 and task = $2", project, request.task or ""
    )
    return HoldReleased(released=command_tag != "DELETE 0")


def _check_project(project: str) -> None:
    if project == FLEET:
        raise ContractError(
            Code.INVALID_FIELD,
            "a hold must be for one project",
            field="project",
            remedy="name a project; to store all events forever, set SANDHERD_HISTORY_DAYS=0 and "
            "SANDHERD_HISTORY_TYPE_DAYS={}, and no SANDHERD_HISTORY_PROJECT_DAYS",
        )
