"""Data about tasks that ended long ago is deleted when no event of them is stored, on a real Postgres."""

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest

from event_ingest.history_policy import RetentionPolicy
from event_ingest.queries.audit import count_missing
from event_ingest.queries.retention import show_status
from event_ingest.queries.verification import verify_tables
from sandherd.contracts.requests import GetHistoryStatus, VerifyHistory
from tests.integration.event_ingest.old_days import OldDays, opened_old_days

POLICY = RetentionPolicy(90, {"forever": 0}, {}, 95)
_OLDEST = "select min(state_at) + interval '95 days' from tasks where state = 'completed'"


@pytest.fixture
async def days(history: Any) -> AsyncIterator[OldDays]:
    async with opened_old_days(history) as found:
        yield found


async def names(days: OldDays) -> set[str]:
    """The tasks and sandboxes that the tables have."""
    rows = await days.history.rows(
        "select task as name from tasks union select sandbox from sandboxes union select sandbox from messages "
        "union select sandbox from approvals union select entity from sources where entity <> ''"
    )
    return {row["name"] for row in rows}


def lived(script: Any, number: int, project: str = "default") -> list[Any]:
    box = f"sbx-{number}"
    queued = script.emit(
        "message.queued", box, f"/sandherd/message-relay/{box}/m-1", project=project, message_id=f"m-{number}",
        message_type="user_message", content_length=4,
    )  # fmt: skip
    seen = script.emit(
        "monitor.notification_published", box, "/sandherd/monitor/one", project=project, kind="recovery", message="x",
        cause_id=queued.id, cause_type=queued.type,
    )  # fmt: skip
    requested = script.asking(box, "a-1", project=project, expires_at=script.clock, on_timeout="deny")
    return [*script.life(f"task-{number}", box, project=project), queued, seen, *requested]


async def end(days: OldDays, ago: timedelta = timedelta(days=100)) -> None:
    await days.connection.execute("update tasks set state_at = now() - $1::interval", ago)
    await days.connection.execute("update sandboxes set state_at = now() - $1::interval", ago)


async def test_ended_tasks_are_deleted_with_all_that_is_known_of_them(days: OldDays, script: Any) -> None:
    """Data stays if an event is stored, the task is held or has not ended, or its project stores everything forever.

    A source that is also about others stays complete.
    """
    await days.store([*lived(script, 1), *lived(script, 2), *lived(script, 4, "forever")], days.old)
    await days.store(lived(script, 3), days.now.date())
    await days.store(script.life("task-5", "sbx-5")[:6], days.old)  # it is running
    await end(days)
    await days.connection.execute("delete from events where entity <> 'sbx-3'")
    await days.connection.execute("insert into history_holds (project, task, reason) values ('default', 'task-2', 'x')")
    before = await names(days)
    metrics = await days.reduce(POLICY)
    assert before - await names(days) == {"task-1", "sbx-1"}
    assert metrics.get_sample_value("sandherd_history_tasks_deleted_total") == 1
    assert await count_missing(days.connection) == 0
    [monitor] = await days.history.rows(
        "select sum(stored) as stored from sources where source = '/sandherd/monitor/one' and project = 'default'"
    )
    assert monitor["stored"] == 3
    async with days.history.database.reading(heavy=True) as connection:
        verified = await verify_tables(connection, VerifyHistory(), "default", 1_000_000)
    assert {one.field for one in verified.differences} <= {"state_at"}  # the test has changed it
    await days.connection.execute("delete from history_holds")
    await days.connection.execute("delete from events")
    await end(days, timedelta(days=94))
    await days.reduce(POLICY)
    assert before - await names(days) == {"task-1", "sbx-1"}
    await end(days)
    status = await show_status(POLICY, days.connection, GetHistoryStatus(), "fleet", 0)
    assert (status.task_days, status.next_task_at) == (95, await days.connection.fetchval(_OLDEST))
    await days.reduce(RetentionPolicy(90))
    await days.reduce(POLICY)
    assert await names(days) == {"task-4", "sbx-4", "task-5", "sbx-5"}
    assert await count_missing(days.connection) == 0
