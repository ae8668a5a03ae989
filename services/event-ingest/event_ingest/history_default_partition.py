"""Deletes expired events from the default partition, row by row, in batches.

The default partition has the events whose date has no other one. Their retention begins when they were stored.
"""

from datetime import datetime
from typing import Final

from event_ingest.database import Connection
from event_ingest.history_partitions import read_not_before
from event_ingest.history_policy import RetentionPolicy, stored_before

BATCH_SIZE: Final = 1000
"""Maximum number of events that one transaction deletes."""
_DELETE_UNDATED: Final = """
with deleted as (
    delete from events_default where id in (
        select e.id from events_default e
        left join unnest($1::text[], $2::timestamptz[]) as l (project, stored_before) using (project)
        where e.stored_at < $4
            and e.stored_at < case when l.project is null then $3::timestamptz else l.stored_before end
            and not exists (select from history_holds h where h.project = e.project and (h.task in ('', e.entity)
                or exists (select from sandboxes b where b.project = h.project and b.task = h.task
                    and b.sandbox = e.entity)))
        order by e.stored_at limit $5)
    returning id
)
select count(*) from deleted
"""


async def delete_undated(connection: Connection, policy: RetentionPolicy, now: datetime) -> int:
    """Delete a batch of expired events from the default partition. Returns their number. Call it until it returns 0."""
    not_before = await read_not_before(connection)
    limit_by_project = {project: stored_before(days, not_before, now) for project, days in policy.project_days.items()}
    general_limit = stored_before(policy.days, not_before, now)
    limits = [limit for limit in (*limit_by_project.values(), general_limit) if limit is not None]
    if not limits:
        return 0
    async with connection.transaction():
        await connection.execute("set local lock_timeout = '1s'")
        await connection.execute("lock table history_holds in share mode")
        deleted: int = await connection.fetchval(
            _DELETE_UNDATED,
            list(limit_by_project),
            list(limit_by_project.values()),
            general_limit,
            max(limits),
            BATCH_SIZE,
        )
    return deleted
