"""Deletes the rows of tasks and sandboxes that ended long ago and of which no event is stored.

The tables are keyed by names, which can be used again, so they have no partitions by time. Rows are deleted in batches,
each in one transaction. The storing of events about the same names waits for that transaction.

`sources` has a row of totals for each source of events and each task or sandbox that its events are about. If a source
has events about other tasks or sandboxes too, the deleted totals are added to its row with an empty name, so that the
sums over all rows of the source stay correct.
"""

from datetime import datetime, timedelta
from typing import Final

from event_ingest.database import Connection
from event_ingest.history_policy import RetentionPolicy
from sandherd.contracts.errors import Code, ContractError
from sandherd.contracts.names import created_at
from sandherd.contracts.states import SANDBOX_ENDED, TASK_ENDED

BATCH_SIZE: Final = 100
"""Maximum number of tasks, and of sandboxes without a task, that one transaction deletes."""
TASK_STATES: Final = ", ".join(f"'{state.value}'" for state in sorted(TASK_ENDED))
_SANDBOX_STATES: Final = ", ".join(f"'{state.value}'" for state in sorted(SANDBOX_ENDED))
# `r` is a row of a task or sandbox. It must have ended before the limit of its project, or before $3 if there is none.
# $4 is the latest of these limits, which Postgres can search for in an index.
_ENDED_BEFORE_LIMIT: Final = """
    r.state_at < $4 and r.state_at < case when l.project is null then $3::timestamptz else l.before end
"""
_NO_EVENT_STORED: Final = """
    not exists (select from events e where e.entity = {name} and e.project || '' = r.project)
    and not exists (select from event_summaries e where e.entity = {name} and e.project = r.project)
"""
_JOIN_PROJECT_LIMITS: Final = "left join unnest($1::text[], $2::timestamptz[]) as l (project, before) using (project)"
_EXPIRED_TASKS: Final = f"""
select r.project, r.task, null as sandbox from tasks r {_JOIN_PROJECT_LIMITS}
where r.state in ({TASK_STATES}) and {_ENDED_BEFORE_LIMIT} and {_NO_EVENT_STORED.format(name="r.task")}
    and not exists (select from history_holds h where h.project = r.project and h.task in ('', r.task))
    and not exists (select from sandboxes b where b.project = r.project and b.task = r.task and (
        coalesce(b.state, '') not in ({_SANDBOX_STATES}) or not ({_NO_EVENT_STORED.format(name="b.sandbox")})))
order by r.state_at limit $5
"""  # noqa: S608  # our own names
_EXPIRED_SANDBOXES: Final = f"""
select r.project, null as task, r.sandbox from sandboxes r {_JOIN_PROJECT_LIMITS}
where r.state in ({_SANDBOX_STATES}) and {_ENDED_BEFORE_LIMIT} and {_NO_EVENT_STORED.format(name="r.sandbox")}
    and not exists (select from history_holds h where h.project = r.project and h.task in ('', r.task))
    and not exists (select from tasks t where t.project = r.project and t.task = r.task)
order by r.state_at limit $5
"""  # noqa: S608  # our own names
_DELETE: Final = """
with expired as materialized ({expired}), sandbox_names as materialized (
    select b.project, b.sandbox from sandboxes b join expired x on b.project = x.project
        and (b.task = x.task or b.sandbox = x.sandbox)
), named (project, name) as materialized (
    select project, task from expired where task is not null union select project, sandbox from sandbox_names
), totals as (
    delete from sources s using named n where s.project = n.project and s.entity = n.name returning s.*
), moved as (
    insert into sources as s
    select project, source, '', sum(stored), max(highest), sum(sequence_sum), max(closing), max(last_at),
        sum(heartbeats), min(first_heartbeat), max(last_heartbeat)
    from totals where exists (
        select from sources o where o.project = totals.project and o.source = totals.source
            and not exists (select from named n where n.project = o.project and n.name = o.entity))
    group by project, source order by project, source
    on conflict (project, source, entity) do update set
        stored = s.stored + excluded.stored, highest = greatest(s.highest, excluded.highest),
        sequence_sum = s.sequence_sum + excluded.sequence_sum, closing = greatest(s.closing, excluded.closing),
        last_at = greatest(s.last_at, excluded.last_at), heartbeats = s.heartbeats + excluded.heartbeats
), deleted_messages as (
    delete from messages m using sandbox_names b where m.project = b.project and m.sandbox = b.sandbox
), deleted_approvals as (
    delete from approvals a using sandbox_names b where a.project = b.project and a.sandbox = b.sandbox
), deleted_sandboxes as (
    delete from sandboxes d using sandbox_names b where d.project = b.project and d.sandbox = b.sandbox
), deleted_tasks as (
    delete from tasks t using expired x where t.project = x.project and t.task = x.task
)
select count(*) from expired
"""


async def delete_ended_tasks(connection: Connection, policy: RetentionPolicy, now: datetime) -> int:
    """Delete a batch. Returns how many tasks, and sandboxes without a task, it had. Call it until it returns 0."""
    limit_by_project = {project: _ended_before(policy, days, now) for project, days in policy.project_days.items()}
    general_limit = _ended_before(policy, policy.days, now)
    limits = [limit for limit in (*limit_by_project.values(), general_limit) if limit is not None]
    if not limits:
        return 0
    values = list(limit_by_project), list(limit_by_project.values()), general_limit, max(limits), BATCH_SIZE
    async with connection.transaction():
        await connection.execute("set local lock_timeout = '1s'")
        await connection.execute("lock table history_holds in share mode")
        tasks: int = await connection.fetchval(_DELETE.format(expired=_EXPIRED_TASKS), *values)
        sandboxes: int = await connection.fetchval(_DELETE.format(expired=_EXPIRED_SANDBOXES), *values)
    return tasks + sandboxes


def _ended_before(policy: RetentionPolicy, days: int, now: datetime) -> datetime | None:
    """The time before which a task must have ended to be deleted. Events of its project are stored for `days` days.

    None if the project's events or tasks are stored forever.
    """
    return now - timedelta(days=max(policy.task_days, days)) if days and policy.task_days else None


def expires_at(ended_at: datetime, policy: RetentionPolicy) -> datetime | None:
    """When a task that ended at this time may be deleted, in a project without its own retention. None means never."""
    days = max(policy.task_days, policy.days)
    return ended_at + timedelta(days=days) if policy.task_days and policy.days else None


def expired_error(name: str, task_days: int, now: datetime) -> ContractError | None:
    """The error for a name that is not stored, if the time in the name is more than `task_days` ago; else None."""
    named_time = created_at(name)
    if not task_days or named_time is None or named_time > now - timedelta(days=task_days):
        return None
    return ContractError(
        Code.NOT_FOUND,
        f"{name} is not stored: its name is of {named_time:%Y-%m-%d}, so if it existed, it has expired",
        field="sandbox",
        remedy=f"ended tasks are deleted after {task_days} days; see SANDHERD_HISTORY_TASK_DAYS",
    )
