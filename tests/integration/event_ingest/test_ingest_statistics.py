"""Statistics, the state of a project, transcripts, and indexes of partitions, from a real database."""

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from pydantic import ValidationError

from event_ingest.partition_indexes import NAMES, PartitionIndexes, missing_indexes, unpacked_indexes
from event_ingest.queries.statistics import count_statistics, show_overview
from event_ingest.queries.transcript import read_transcript
from event_ingest.schema import partition_name
from sandherd.bus.consumers.consumer import DONE
from sandherd.contracts.errors import Code, ContractError
from sandherd.contracts.model import MAX_WHOLE
from sandherd.contracts.names import FLEET
from sandherd.contracts.requests import GetOverview, GetStatistics, GetTranscript
from sandherd.contracts.requests.statistics import StatisticGroup


async def ask(history: Any, query: Any, question: Any, project: str = "default", budget: int = 1_000_000) -> Any:
    async with history.database.reading() as connection:
        return await query(connection, question, project, budget)


def turn(script: Any, sandbox: str, number: int, *, model: str = "m1", cost: int = 5, **more: Any) -> list[Any]:
    """The events of a turn with two calls."""
    own = {"turn": number, **more}
    return [
        script.agent("agent.turn_started", sandbox, **own),
        *(script.agent("agent.tool_use", sandbox, tool="Bash", tool_use_id=f"t{number}{n}", **own) for n in (1, 2)),
        script.agent("agent.usage", sandbox, model=model, input_tokens=10, cost_micro_usd=cost, **own),
    ]


async def write_two_tasks(history: Any, script: Any) -> None:
    for task, sandbox in (("task-1", "sbx-1"), ("task-2", "sbx-2")):
        await history.deliver(script.life(task, sandbox))
    await history.deliver(turn(script, "sbx-1", 1) + turn(script, "sbx-1", 2, model="m2", cost=7))
    await history.deliver([*turn(script, "sbx-2", 1, cost=40), script.agent("agent.error", "sbx-2", error="broken")])
    await history.deliver(turn(script, "sbx-1", 1, cost=1000, project="other"))


async def test_statistics_are_exact_in_each_group(history: Any, script: Any) -> None:
    """Groups by task, project, harness, model and day are exact; the total includes groups beyond the limit."""
    await write_two_tasks(history, script)
    by_task = await ask(history, count_statistics, GetStatistics(by="task", limit=1))
    [first] = by_task.groups
    assert (first.group, first.project, first.cost_micro_usd, first.turns, first.tool_calls, first.errors) == (
        "task-2", "default", 40, 1, 2, 1,
    )  # fmt: skip
    total = by_task.total
    assert (total.cost_micro_usd, total.input_tokens, total.turns, total.tool_calls, total.errors) == (52, 30, 3, 6, 1)
    assert by_task.group_count == 2
    expected: list[tuple[StatisticGroup, list[tuple[str | None, int]]]] = [
        ("project", [("default", 3)]),
        ("harness", [("command", 3)]),
        ("model", [("m1", 1), ("m2", 2)]),
        ("day", [("2026-11-20", 3)]),
    ]
    for by, groups in expected:
        found = await ask(history, count_statistics, GetStatistics(by=by))
        assert [(one.group, one.turns) for one in found.groups] == groups, by
        assert found.total.cost_micro_usd == 52
    assert (await ask(history, count_statistics, GetStatistics(by="project"), FLEET)).total.cost_micro_usd == 1052
    assert (await ask(history, count_statistics, GetStatistics(tasks=["task-1"]))).total.turns == 2
    reversed_range = GetStatistics(since=datetime(2026, 12, 1, tzinfo=UTC), until=datetime(2026, 11, 1, tzinfo=UTC))
    assert (await ask(history, count_statistics, reversed_range)).groups == []
    await history.deliver(turn(script, "sbx-1", 3, cost=MAX_WHOLE) + turn(script, "sbx-1", 4, cost=MAX_WHOLE))
    assert (await ask(history, count_statistics, GetStatistics(by="day"))).total.cost_micro_usd == MAX_WHOLE


async def test_overview_has_states_rates_and_what_needs_a_user(history: Any, script: Any) -> None:
    """States have exact counts; rates include each event once, also if delivered twice; needs are in order."""
    await write_two_tasks(history, script)
    events = [*script.asking("sbx-2", "ap-1"), *turn(script, "sbx-2", 2, cost=MAX_WHOLE)]
    await history.deliver(events)
    await history.deliver([*events, *turn(script, "sbx-2", 3, cost=MAX_WHOLE)])
    await history.deliver(
        [script.spawner("task.submitted", "task-3", taskid="task-3", task="t", harness="command", runtime="process")]
    )
    failed = script.spawner("task.failed", "task-3", taskid="task-3", attempt=1, error="x" * 999, error_type="internal")
    await history.deliver([failed])
    stored = (await history.rows("select count(*) as stored from events where project = 'default'"))[0]["stored"]
    long = GetOverview(seconds=31 * 86_400, bucket_seconds=86_400, needs=1)
    found = await ask(history, show_overview, long)
    assert found.tasks == {"completed": 2, "failed": 1}
    assert found.sandboxes == {"terminated": 2}
    assert sum(bucket.events for bucket in found.buckets) == stored
    assert sum(bucket.tool_calls for bucket in found.buckets) == 10
    assert sum(bucket.turns for bucket in found.buckets) == 5
    assert sum(bucket.errors for bucket in found.buckets) == 1
    assert found.buckets[-1].cost_micro_usd == MAX_WHOLE
    assert [(need.kind, need.task, need.approval_id, need.text) for need in found.needs] == [
        ("approval", "task-2", "ap-1", "Bash")
    ]
    assert found.need_count == 2
    both = await ask(history, show_overview, long.model_copy(update={"needs": 50}))
    assert [(need.kind, need.task, len(need.text)) for need in both.needs][1:] == [("failed", "task-3", 300)]
    empty = await ask(history, show_overview, GetOverview(), "nowhere")
    assert (empty.tasks, empty.sandboxes, empty.buckets, empty.needs, empty.need_count) == ({}, {}, [], [], 0)
    with pytest.raises(ValidationError, match="buckets"):
        GetOverview(seconds=31 * 86_400)


async def test_transcript_is_complete_in_pages_of_any_size(history: Any, script: Any) -> None:
    """Every message, call, result and edit comes once and in order, in both directions, of this project only."""
    published = [
        script.agent("agent.user_message", "sbx-1", content="do it", content_length=5),
        script.agent("agent.thinking", "sbx-1", content="hm"),
        script.agent("agent.tool_use", "sbx-1", tool="Bash", tool_use_id="t1", input={"command": "ls <b>"}),
        script.agent("agent.tool_result", "sbx-1", tool_use_id="t1", result="no", is_error=True),
        script.agent("agent.file_edited", "sbx-1", file_path="a.py", change_type="modified", diff_preview="+x"),
        script.heartbeat("sbx-1"),
        script.agent("agent.message", "sbx-1", content="y" * 30_000, content_length=30_000, turn=2),
        script.agent("agent.message", "sbx-1", project="other", content="secret", content_length=6),
    ]
    await history.deliver(published)
    question, found = GetTranscript(sandbox="sbx-1", limit=2), []
    while True:
        page = await ask(history, read_transcript, question)
        found += page.entries
        if page.next_cursor is None:
            break
        question = question.model_copy(update={"cursor": page.next_cursor})
    assert [one.kind for one in found] == ["input", "thought", "call", "result", "edit", "message"]
    assert [(one.title, one.text) for one in found[2:5]] == [
        ("Bash", "ls <b>"), (None, "no"), ("a.py", "modified +0 −0\n+x"),
    ]  # fmt: skip
    assert found[3].is_error
    assert (len(found[5].text), found[5].cut, found[5].turn) == (20_000, True, 2)
    newest = GetTranscript(sandbox="sbx-1", newest_first=True, thoughts=False, results=False)
    entries = (await ask(history, read_transcript, newest)).entries
    assert [one.kind for one in entries] == ["message", "edit", "call", "input"]
    with pytest.raises(ContractError) as refused:
        await ask(history, read_transcript, question.model_copy(update={"cursor": page.next_cursor or "x"}), "other")
    assert refused.value.problem.code is Code.INVALID_FIELD
    with pytest.raises(ContractError) as unknown:
        await ask(history, read_transcript, GetTranscript(sandbox="sbx-1"), "third")
    assert unknown.value.problem.code is Code.NOT_FOUND


async def test_indexes_of_days_that_are_over_are_packed_once(history: Any, script: Any) -> None:
    """Today's indexes are not packed; an interrupted run is repeated; events of a packed day are stored once."""
    now = datetime.now(UTC)
    yesterday, indexes = partition_name((now - timedelta(days=1)).date()), "select indexrelid::regclass::text as name"
    indexes += " from pg_index where indrelid = $1::regclass and indisvalid order by 1"
    noon = now.replace(hour=12) - timedelta(days=1)
    [event] = script.messages("sbx-1", 1)
    event = event.model_copy(update={"id": UUID(int=int(noon.timestamp() * 1000) << 80 | 7 << 76 | 2 << 62)})
    async with history.database.maintaining() as connection:
        before = await connection.fetch(indexes, yesterday)
        later = now.replace(hour=2)  # of today at every time of the day; then of yesterday, which is over
        names = [name for name, _ in await unpacked_indexes(connection, later) if name.startswith(yesterday)]
        assert len(names) == len(before)
        await connection.execute(f"create index {names[0]}_ccnew on {yesterday} (id)")
        await connection.execute(
            f"update pg_index set indisvalid = false where indexrelid = '{names[0]}_ccnew'::regclass"
        )
        assert await PartitionIndexes(history.database).create(later)
        unpacked = [name for name, _ in await unpacked_indexes(connection, later + timedelta(days=1))]
        assert unpacked
        assert not [name for name in unpacked if name < partition_name(now.date())]
        packed = {row["name"] for row in await connection.fetch(indexes, yesterday)}
        assert {row["name"] for row in before} < packed
        full = "select count(*) from pg_class where relname = any($1) and 'fillfactor=100' = any(reloptions)"
        assert await connection.fetchval(full, names) == len(names)
        assert await connection.fetchval("select to_regclass($1)", f"{names[0]}_ccnew") is None
    assert await history.deliver([event, event]) == [DONE, DONE]
    assert await history.rows("select count(*) from events where id = $1", event.id) == [{"count": 1}]


async def test_partitions_get_their_indexes_while_events_are_stored(history: Any, script: Any) -> None:
    """Without an index, or with an incomplete one, each partition and the table get a valid one during writes."""
    await history.deliver(turn(script, "sbx-1", 1))
    async with history.database.maintaining() as connection:
        for name in NAMES:
            definition = await connection.fetchval("select pg_get_indexdef($1::regclass)", name)
            await connection.execute(f"drop index {name}")
            await connection.execute(definition.replace(" ON public.events", " ON ONLY public.events"))
        missing = await missing_indexes(connection)
        partitions = await connection.fetchval("select count(*) from pg_inherits where inhparent = 'events'::regclass")
        assert len(missing) == len(NAMES) * partitions
        await connection.execute(missing[0].statements[0])
        await connection.execute(
            f"update pg_index set indisvalid = false where indexrelid = '{missing[0].name}'::regclass"
        )
        await history.deliver(turn(script, "sbx-1", 2))
        assert await PartitionIndexes(history.database).create(datetime.now(UTC))
        assert await missing_indexes(connection) == []
        assert await connection.fetchval(
            "select indisvalid from pg_index where indexrelid = 'events_of_activity'::regclass"
        )
        async with history.database.maintaining() as other:
            await other.execute("select pg_advisory_lock($1::bigint)", 0x5A4D_494E_4458)
            assert not await PartitionIndexes(history.database).create(datetime.now(UTC))
    assert (await ask(history, count_statistics, GetStatistics())).total.turns == 2
