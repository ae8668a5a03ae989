"""Delivered events are stored once and unchanged, and an invalid one affects no other."""

import asyncio
import json
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from event_ingest.batch_writer import stored_rows, write_new
from event_ingest.event_rows import EventBatch
from event_ingest.schema import ensure_partitions, partition_name
from sandherd.bus.consumers.consumer import DONE, Dead, Retry
from sandherd.contracts.errors import Code
from sandherd.contracts.names import derived_uuid
from tests.polling import eventually


async def test_event_is_stored_verbatim(history: Any, script: Any) -> None:
    """Unknown members, numbers, blanks and control characters are stored as published."""
    [event] = script.messages("sbx-1", 1)
    event_document = json.loads(event.to_json())
    event_document["newer"] = "extension"
    event_document["data"] |= {"content": "a\x01b \U0001f41f", "later_field": [1.50, 2**70]}
    document = json.dumps(event_document, indent=1).encode()
    [delivery] = history.delivered([event])
    assert await history.ingest.handle([delivery._replace(data=document)]) == [DONE]
    [row] = await history.rows("select *, envelope::text as text from events")
    assert row["text"].encode() == document
    assert (row["id"], row["sequence"], row["entity"], row["type"]) == (event.id, 1, "sbx-1", "agent.message")
    assert row["size"] == len(document)


@pytest.fixture(params=[1, 10**6], ids=["copied", "inserted"])
def copied(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether batches of any size, or none, are written by COPY first."""
    monkeypatch.setattr("event_ingest.batch_writer._MIN_EVENTS_FOR_COPY", request.param)


@pytest.mark.usefixtures("copied")
async def test_redelivered_event_is_counted_once(history: Any, script: Any) -> None:
    """An event that is delivered twice in one batch, and in a later one, is one row and one in every count."""
    events = script.messages("sbx-1", 10)
    assert await history.deliver([*events, *events[:3]]) == [DONE] * 13
    assert await history.deliver(events) == [DONE] * 10
    [row] = await history.rows("select stored, highest, sequence_sum from sources")
    assert row == {"stored": 10, "highest": 10, "sequence_sum": 55}
    assert await history.rows("select * from refusals") == [{"project": "default", "duplicates": 13}]
    assert await history.rows("select count(*) from events") == [{"count": 10}]


@pytest.mark.usefixtures("copied")
@pytest.mark.parametrize("ends", ["commit", "rollback"])
async def test_batch_waits_for_what_another_replica_is_storing(history: Any, script: Any, ends: str) -> None:
    """A batch waits for events of another transaction: those that it commits are duplicates, others are not."""
    events = script.messages("sbx-1", 6)
    other = EventBatch()
    for index, delivery in enumerate(history.delivered(events[2:4])):
        other.add(index, delivery)
    async with history.database.writing() as connection:
        transaction = connection.transaction()
        await transaction.start()
        await write_new(connection, other, stored_rows(history.database, other))
        handling = asyncio.create_task(history.deliver(events))
        waiting = "select exists (select from pg_stat_activity where wait_event = 'transactionid') as waits"
        await eventually(lambda: _is_true(history, waiting), "the batch waits for the transaction")
        await getattr(transaction, ends)()
    assert await handling == [DONE] * 6
    [row] = await history.rows("select stored, highest, sequence_sum from sources")
    assert row == {"stored": 6, "highest": 6, "sequence_sum": 21}
    assert await history.rows("select sum(events)::int as events from event_rates") == [{"events": 6}]
    refused = await history.rows("select duplicates from refusals")
    assert refused == ([{"duplicates": 2}] if ends == "commit" else [])
    assert await history.rows("select count(*) from events") == [{"count": 6}]


async def _is_true(history: Any, question: str) -> bool:
    [[answer]] = [row.values() for row in await history.rows(question)]
    return bool(answer)


@pytest.mark.usefixtures("copied")
async def test_replicas_that_store_the_same_events_at_once_count_each_once(history: Any, script: Any) -> None:
    """Overlapping batches in opposite orders, at the same time, lose no event in a deadlock; all counts are exact."""
    events = script.messages("sbx-1", 60) + script.messages("sbx-2", 60)
    batches = [events[:80], events[::-1][:80], events[20:100], events[::-1]]
    outcomes = await asyncio.gather(*[history.deliver(batch) for batch in batches])
    assert outcomes == [[DONE] * len(batch) for batch in batches]
    rows = await history.rows("select stored, highest, sequence_sum from sources order by source")
    assert rows == [{"stored": 60, "highest": 60, "sequence_sum": 1830}] * 2
    assert await history.rows("select sum(events)::int as events from event_rates") == [{"events": 120}]
    given = sum(map(len, batches))
    assert await history.rows("select duplicates from refusals") == [{"duplicates": given - len(events)}]
    assert await history.rows("select count(*) from events") == [{"count": len(events)}]


async def test_large_batch_is_stored_in_parts(history: Any, script: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each event of a large batch is stored once, and one that was stored before is counted as such, in any part."""
    events = script.messages("sbx-1", 9)
    assert await history.deliver(events[3:5]) == [DONE] * 2
    monkeypatch.setattr("event_ingest.batch_writer.MAX_BYTES", len(events[0].to_json()) * 2)
    assert await history.deliver(events) == [DONE] * 9
    [row] = await history.rows("select stored, highest, sequence_sum from sources")
    assert row == {"stored": 9, "highest": 9, "sequence_sum": 45}
    assert await history.rows("select duplicates from refusals") == [{"duplicates": 2}]
    assert await history.rows("select count(distinct xmin::text) > 3 as parts from events") == [{"parts": True}]


@pytest.mark.usefixtures("copied")
async def test_event_with_a_used_id_is_refused_visibly(history: Any, script: Any) -> None:
    """Another event with a used id is counted as refused, and does not disappear as if it was stored."""
    mine, others = script.messages("sbx-1", 1), script.messages("sbx-2", 1)
    stolen = others[0].model_copy(update={"id": mine[0].id})
    assert await history.deliver(mine) == [DONE]
    first, second = await history.deliver([stolen, *mine])
    assert isinstance(first, Dead)
    assert (first.problem.code, first.problem.field) == (Code.CONFLICT, "id")
    assert second == DONE
    assert await history.rows("select duplicates from refusals") == [{"duplicates": 1}]


@pytest.mark.parametrize("count", [20, 300])
async def test_new_events_are_counted_like_others(history: Any, script: Any, count: int) -> None:
    """A few new events by one statement, and many by COPY, are counted like events with duplicates among them."""
    events = script.life("task-1", "sbx-1") + script.messages("sbx-2", count)
    events += [script.agent("agent.heartbeat", "sbx-2", timestamp=script.clock) for _ in range(3)]
    events += [script.agent("agent.usage", "sbx-2", cost_micro_usd=cost) for cost in (5, 7)]
    events += [script.agent("agent.turn_started", "sbx-2"), script.agent("agent.error", "sbx-2", error="e")]
    totals = "select {} from event_rates group by project".format(
        ", ".join(
            f"sum({name})::int as {name}" for name in ("events", "turns", "tool_calls", "errors", "cost_micro_usd")
        )
    )
    assert await history.deliver(events) == [DONE] * len(events)
    new = [await history.rows("select * from sources order by source"), await history.rows(totals)]
    stored = await history.rows("select id, size from events order by id")
    async with history.database.writing() as connection:
        await connection.execute("delete from events; delete from sources; delete from event_rates")
    assert await history.deliver([*events, events[0]]) == [DONE] * (len(events) + 1)
    assert [await history.rows("select * from sources order by source"), await history.rows(totals)] == new
    assert await history.rows("select id, size from events order by id") == stored
    assert new[1][0]["cost_micro_usd"] == 12


def _poisons(event: Any, delivery: Any) -> list[tuple[Any, Code]]:
    """Deliveries that are not events, or that Postgres refuses, and their dead letters."""
    document = json.loads(delivery.data)
    return [
        (delivery._replace(data=b"{"), Code.INVALID_JSON),
        (delivery._replace(data=b"\xff\xfe"), Code.INVALID_JSON),
        (delivery._replace(data=json.dumps(document | {"data": {}}).encode()), Code.INVALID_FIELD),
        (delivery._replace(data=delivery.data.replace(b'"word 0"', b'"\\ud800"')), Code.INVALID_JSON),
        (
            delivery._replace(data=json.dumps(document | {"time": "0001-01-01T00:00:00+14:00"}).encode()),
            Code.INVALID_FIELD,
        ),
        (delivery._replace(data=json.dumps(document | {"project": "other"}).encode()), Code.WRONG_SUBJECT),
        (
            delivery._replace(data=json.dumps(document | {"source": "/sandherd/sandbox/sbx-2"}).encode()),
            Code.WRONG_SUBJECT,
        ),
        (delivery._replace(subject=delivery.subject.replace("agent.message", "agent.unheard_of")), Code.UNKNOWN_TYPE),
        (delivery._replace(data=delivery.data.replace(b'"turn":0', b'"turn":0,"x":NaN')), Code.INVALID_JSON),
        (delivery._replace(data=b" " * 300_000), Code.TOO_LARGE),
        (delivery._replace(data=delivery.data.replace(b'"word 0"', b'"a\\u0000"')), Code.INVALID_FIELD),
        (
            delivery._replace(data=json.dumps(document | {"id": str(UUID(int=0, version=4))}).encode()),
            Code.INVALID_FIELD,
        ),
    ]


async def test_invalid_messages_affect_no_other(history: Any, script: Any) -> None:
    """Each kind of invalid message, spread over a batch, goes to DEAD with its reason; all others are stored."""
    good = script.messages("sbx-1", 40)
    [bad] = script.messages("sbx-9", 1)
    poisons = _poisons(bad, history.delivered([bad])[0])
    batch: list[Any] = history.delivered(good)
    for place, (poison, _) in enumerate(poisons):
        batch.insert(place * 4 + 1, poison)
    outcomes = await history.ingest.handle(batch)
    codes = [outcome.problem.code for outcome in outcomes if isinstance(outcome, Dead)]
    assert codes == [code for _, code in poisons]
    assert [outcome for outcome in outcomes if not isinstance(outcome, Dead)] == [DONE] * len(good)
    assert await history.rows("select count(*) from events") == [{"count": len(good)}]


async def test_event_refused_by_postgres_is_singled_out(history: Any, script: Any) -> None:
    """Data that passes every check and that Postgres refuses is found by halving the batch."""
    await _forbid(history, "poison")
    events = script.messages("sbx-1", 100)
    for place in (0, 41, 99):
        events[place] = events[place].model_copy(
            update={"data": events[place].data.model_copy(update={"content": "poison"})}
        )
    outcomes = await history.deliver(events)
    assert [place for place, outcome in enumerate(outcomes) if isinstance(outcome, Dead)] == [0, 41, 99]
    assert await history.rows("select stored from sources") == [{"stored": 97}]


async def _forbid(history: Any, word: str) -> None:
    async with history.database.writing() as connection:
        await connection.execute(f"alter table events add check (envelope::text not like '%{word}%')")


async def test_replicas_store_concurrently_without_deadlock(history: Any, script: Any) -> None:
    """Events that are delivered in opposite orders at the same time are stored once each, and none is dropped."""
    events = [event for place in range(20) for event in script.life(f"task-{place}", f"sbx-{place}")]
    events += [event for place in range(20) for event in script.messages(f"sbx-{place}", 5)]
    deliveries = history.delivered(events)
    batches = [deliveries[start : start + 40] for start in range(0, len(deliveries), 40)]
    jobs = [history.ingest.handle(batch) for batch in [*batches, *[batch[::-1] for batch in batches]]]
    outcomes = await asyncio.gather(*jobs)
    assert all(outcome == DONE for batch in outcomes for outcome in batch)
    assert await history.rows("select sum(stored)::int as stored from sources") == [{"stored": len(events)}]


async def test_unavailable_database_requests_redelivery(
    history: Any, script: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No uncommitted event is acknowledged: every event of the batch is requested again, invalid ones are not."""
    monkeypatch.setattr("event_ingest.ingest.DATABASE_TIMEOUT", 0.01)
    history.database._set_problem("stopped")
    events = script.messages("sbx-1", 3)
    batch = [*history.delivered(events), history.delivered(events)[0]._replace(data=b"{")]
    outcomes = await history.ingest.handle(batch)
    assert [type(outcome) for outcome in outcomes] == [Retry, Retry, Retry, Dead]


async def test_ids_of_no_partition_move_to_their_day(history: Any, script: Any) -> None:
    """An id of a wrong clock is stored in the default partition, is a duplicate there, too, and moves to its day."""
    later = datetime.now(UTC) + timedelta(days=30)
    [event] = [
        event.model_copy(update={"id": derived_uuid(later, "an event")}) for event in script.messages("sbx-1", 1)
    ]
    assert await history.deliver([event]) == [DONE]
    assert await history.rows("select count(*) from events_default") == [{"count": 1}]
    async with history.database.writing() as connection:
        made = await ensure_partitions(connection, later)
        again = await ensure_partitions(connection, later)
    assert later.date() in made
    assert again == []
    assert await history.rows("select count(*) from events_default") == [{"count": 0}]
    assert await history.rows(f"select count(*) from {partition_name(later.date())}") == [{"count": 1}]
    assert await history.deliver([event]) == [DONE]
    assert await history.rows("select count(*) from events") == [{"count": 1}]
