"""Days of the history that are not needed are dropped, on a real Postgres, while events are stored."""

import asyncio
from collections.abc import AsyncIterator
from datetime import date, timedelta
from typing import Any

import asyncpg
import pytest

from event_ingest.history_partitions import read_partitions
from event_ingest.history_policy import RetentionPolicy
from event_ingest.history_retention import DropResult, set_autovacuum, try_drop
from event_ingest.queries.retention import show_status
from event_ingest.schema import ensure_partitions, partition_name
from sandherd.bus.errors import RefusedError
from sandherd.contracts.errors import Code
from sandherd.contracts.requests import GetAudit, GetHistoryStatus, HoldHistory, ReleaseHistory
from sandherd.contracts.subjects import Principal
from tests.integration.event_ingest.old_days import POLICY, OldDays, opened_old_days
from tests.patience import PATIENCE


@pytest.fixture
async def days(history: Any) -> AsyncIterator[OldDays]:
    async with opened_old_days(history) as found:
        yield found


async def test_old_days_are_dropped_and_nothing_else(days: OldDays, script: Any) -> None:
    """Due partitions and their events are dropped; others, totals and read tables stay, and no event is missing."""
    await days.store(script.life("task-1", "sbx-1") + script.messages("sbx-1", 5), days.old)
    await days.store(script.messages("sbx-1", 3), days.now.date())
    await days.run()
    assert not await days.has(days.old)
    assert await days.has(days.now.date())
    assert await days.counts() == {"default": 3}
    assert await days.history.rows("select state from tasks") == [{"state": "completed"}]
    [own] = await days.history.rows("select stored, highest from sources where source like '/sandherd/sandbox/%'")
    assert own == {"stored": 8, "highest": 8}
    partitions = [one.day for one in await read_partitions(days.connection) if one.day is not None]
    assert min(partitions) > days.old + timedelta(days=8)  # the partitions after the old day are due, too


async def test_nothing_is_dropped_within_a_week_after_the_upgrade(days: OldDays, script: Any) -> None:
    """For a week nothing is dropped, so that operators of a long history can prevent it; `status` has the time.

    No event is removed either.
    """
    await days.store([*script.messages("sbx-1", 1), script.heartbeat("sbx-1")], days.old)
    await days.connection.execute("update schema_migrations_before set applied_at = now()")
    await days.run()
    typed = RetentionPolicy(90, {}, {"agent.heartbeat": 1})
    await days.reduce(typed)
    assert await days.has(days.old)
    assert await days.counts() == {"default": 2}
    reduced_at = (await show_status(typed, days.connection, GetHistoryStatus(), "fleet", 0)).next_reduction_at
    assert reduced_at is not None
    assert reduced_at > days.now + timedelta(days=6)
    status = await show_status(POLICY, days.connection, GetHistoryStatus(), "fleet", 0)
    assert status.next_drop_at == status.not_before
    assert status.next_drop_at is not None
    assert status.next_drop_at > days.now + timedelta(days=6)


@pytest.mark.parametrize("task", ["", "task-1"])
async def test_hold_prevents_the_drop_until_it_is_released(days: OldDays, script: Any, task: str) -> None:
    """A hold of a project, or of a task whose sandbox alone has events of the day, prevents its drop; others go."""
    await days.history.deliver(script.life("task-1", "sbx-1"))
    await days.store(script.messages("sbx-1", 2), days.old)
    other = days.old + timedelta(days=1)
    await days.store(script.messages("sbx-2", 2, project="other"), other)
    values = "default", task, "case 7"
    await days.connection.execute("insert into history_holds (project, task, reason) values ($1, $2, $3)", *values)
    metrics = await days.run()
    assert await days.has(days.old)
    assert not await days.has(other)
    assert metrics.get_sample_value("sandherd_history_held_days") == 1
    status = await show_status(POLICY, days.connection, GetHistoryStatus(), "fleet", 0)
    assert [one.day for one in status.partitions if one.held and one.day is not None and one.day < other] == [days.old]
    assert await try_drop(days.connection, days.old, POLICY, days.now) is DropResult.NOT_DUE
    await days.connection.execute("delete from history_holds")
    await days.run()
    assert not await days.has(days.old)


async def test_day_stays_for_the_project_that_needs_it_longest(days: OldDays, script: Any) -> None:
    """A project with a longer retention retains the whole partition; without its events the other projects decide."""
    other = days.old + timedelta(days=1)
    await days.store(script.messages("sbx-1", 1) + script.messages("sbx-2", 1, project="long"), days.old)
    await days.store(script.messages("sbx-1", 1), other)
    await days.run(RetentionPolicy(90, {"long": 400}))
    assert await days.has(days.old)
    assert not await days.has(other)
    assert await days.counts() == {"default": 1, "long": 1}


async def test_events_from_wrong_clocks_create_no_partitions_and_are_deleted_in_time(
    days: OldDays, script: Any
) -> None:
    """Events with ids of 1970 and 2100 have no partition: the time of storing decides, unless they are held."""
    before = [one.day for one in await read_partitions(days.connection)]
    await days.store(script.messages("sbx-1", 2), date(1970, 1, 2))
    await days.store(script.messages("sbx-2", 2, project="other"), date(2100, 1, 1))
    await ensure_partitions(days.connection, days.now)
    assert [one.day for one in await read_partitions(days.connection)] == before
    await days.run()
    assert await days.counts() == {"default": 2, "other": 2}
    await days.connection.execute("insert into history_holds (project, reason) values ('other', 'case 7')")
    await days.connection.execute("update events_default set stored_at = now() - interval '91 days'")
    await days.run()
    assert await days.counts() == {"other": 2}


async def test_new_event_with_an_old_id_does_not_keep_its_day(days: OldDays, script: Any) -> None:
    """An event that is stored now is dropped with the day of its id."""
    await days.store(script.messages("sbx-1", 1), days.old)
    await days.run()
    assert not await days.has(days.old)
    assert await days.counts() == {}


async def test_drop_gives_way_to_statements_before_it(days: OldDays, script: Any) -> None:
    """While a transaction reads the history, nothing changes and nothing waits; afterwards the day is dropped once."""
    await days.store(script.messages("sbx-1", 1), days.old)
    reader, second = await asyncpg.connect(days.history.url), await asyncpg.connect(days.history.url)
    try:
        async with reader.transaction():
            await reader.fetchval("select count(*) from events")
            assert await try_drop(days.connection, days.old, POLICY, days.now) is DropResult.BUSY
            await days.store(script.messages("sbx-1", 1), days.now.date())
        assert await days.counts() == {"default": 2}
        tries = [try_drop(one, days.old, POLICY, days.now) for one in (days.connection, second)]
        done = await asyncio.gather(*tries)
    finally:
        await reader.close()
        await second.close()
    assert done.count(DropResult.DROPPED) == 1
    assert await days.counts() == {"default": 1}


async def test_gap_of_a_source_with_dropped_days_is_counted(running: Any, script: Any) -> None:
    """Dropped events are not missing: only those that never arrived are."""
    events = script.messages("sbx-1", 6)
    await running.emit([*events[:4], events[5]])
    await running.stored(5)
    connection = await asyncpg.connect(running.postgres)
    try:
        await connection.execute("delete from events where sequence < 4")
    finally:
        await connection.close()
    audit = await running.ask(GetAudit(sandbox="sbx-1"), "default")
    assert (audit.missing, audit.conflicts, audit.sources[0].gaps) == (1, 0, [])


async def test_partitions_are_vacuumed_for_rows_that_never_change(days: OldDays) -> None:
    """Partitions of an earlier version are changed once; settings of an operator stay."""
    name, own = partition_name(days.old), partition_name(days.old + timedelta(days=1))
    await days.connection.execute(f"alter table {name} reset (autovacuum_freeze_min_age)")
    await days.connection.execute(f"alter table {name} reset (autovacuum_vacuum_insert_scale_factor)")
    await days.connection.execute(f"alter table {own} reset (autovacuum_freeze_min_age)")
    assert set(await set_autovacuum(days.connection)) == {name, "events_default"}
    rows = await days.connection.fetch("select relname, reloptions from pg_class where relname like 'events\\_%'")
    options = {row["relname"]: row["reloptions"] for row in rows}
    assert options[name] == options[partition_name(days.now.date())]
    assert options[own] == ["autovacuum_vacuum_insert_scale_factor=0.05"]
    assert await set_autovacuum(days.connection) == []


async def test_operator_holds_and_releases(world: Any) -> None:
    """A repeated hold has the new reason; a release removes it; the whole herd can't be held.

    The error for the audit of a name that is older than the retention of tasks states its age.
    """
    async with world.service(history_days=30, history_project_days={"web": 0}, history_task_days=30).running():
        operator = await world.bus(Principal.OPERATOR)

        async def ask(request: Any, project: str = "web") -> Any:
            return await operator.ask(request, project, timeout=PATIENCE)

        for reason in ("case 7", "case 8"):
            await ask(HoldHistory(task="task-1", reason=reason, held_by="ada"))
        status = await ask(GetHistoryStatus(), "fleet")
        assert [(one.project, one.task, one.reason, one.held_by) for one in status.holds] == [
            ("web", "task-1", "case 8", "ada")
        ]
        assert (status.days, [(one.project, one.days) for one in status.project_days]) == (30, [("web", 0)])
        assert status.days_ahead >= 6  # 7, unless a day has just begun
        assert (await ask(ReleaseHistory(task="task-1"))).released
        assert not (await ask(ReleaseHistory(task="task-1"))).released
        with pytest.raises(Exception, match="one project"):
            await ask(HoldHistory(reason="all"), "fleet")
        for name, text in (
            ("sbx-01kahc5x3tf8b9n2m4r6v8w0ya", "its name is of 2025-11-20, so if it existed, it has expired"),
            ("b", "no event"),
        ):
            with pytest.raises(RefusedError, match=text) as refused:
                await ask(GetAudit(sandbox=name), "fleet")
            assert refused.value.problem.code is Code.NOT_FOUND
