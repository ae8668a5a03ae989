"""Events are stored without the values of other columns, and returned unchanged, whatever their form."""

import asyncio
import json
from collections import Counter
from typing import Any

import asyncpg
from hypothesis import example, given, settings
from hypothesis import strategies as st

from event_ingest.batch_writer import store
from event_ingest.event_rows import EventBatch
from event_ingest.migrator import migrate
from event_ingest.queries.trajectory import read_trajectory
from sandherd.bus.consumers.consumer import DONE
from sandherd.contracts.errors import ContractError
from sandherd.contracts.requests import GetTrajectory
from tests.databases import drop_database
from tests.encoded_answers import read_answer

READ = """
select event_document(e) as document, envelope::text as stored, size, event_source(source, entity) as source,
    event_task(taskid) as taskid, event_sandbox(source, sandboxid, entity) as sandboxid, envelope -> 'data' as data
from events e order by stream_sequence
"""
NUMBERS = st.sampled_from(["1.50", "1e400", "-0", "-0.0", "18446744073709551616", "0.1000", "1E+2"])
TEXTS = st.sampled_from(
    ["", "\\u00e9", "é", "\U0001f411", "\\ud83d\\udc11", '\\"data\\":{', "\\\\u0000", "\\/", "\x7f", "{}"]
)
TIMES = st.sampled_from(
    [
        "2026-10-01T09:00:01.000001Z",
        "2026-10-01T09:00:01.100000Z",
        "2026-10-01T09:00:01Z",
        "2026-10-01T09:00:01.5Z",
        "2026-10-01T09:00:01.123456789Z",
        "2026-10-01T11:00:01.000001+02:00",
        "2026-10-01T09:00:01.000001+00:00",
        "2026-10-01 09:00:01.000001Z",
        "2026-10-01T09:00:01.000001z",
    ]
)
TRACE = '"traceparent":"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"'
_ID = "01998a2b-0000-7000-8000-{:012x}"


@st.composite
def documents(draw: Any) -> str:
    """A document as Sandherd writes it, with up to two differences."""
    place = draw(st.integers(0, 2**40))
    members = [
        '"specversion":"1.0"',
        f'"id":"{draw(st.sampled_from([str, str.upper]))(_ID.format(place))}"',
        '"source":"/sandherd/sandbox/sbx-1"',
        '"type":"agent.message"',
        '"subject":"sbx-1"',
        f'"time":"{draw(TIMES)}"',
        '"datacontenttype":"application/json"',
        '"dataschema":"urn:sandherd:v1:agent.message"',
        f'"sequence":{draw(st.integers(1, 2**31 - 1))}',
        *draw(st.sampled_from([[], [TRACE]])),
        '"project":"default"',
        *draw(st.sampled_from([[], ['"taskid":"task-1"']])),
        '"sandboxid":"sbx-1"',
        f'"data":{{"content":"{draw(TEXTS)}","content_length":1,"later":{draw(NUMBERS)}}}',
    ]
    for change in draw(st.lists(st.sampled_from(CHANGES), max_size=2)):
        change(draw, members)
    blank, end = draw(st.sampled_from([("", ""), ("", ""), ("", ""), (" ", "\n")]))
    return f"{{{blank}{f',{blank}'.join(members)}{blank}}}{end}"


def _move(draw: Any, members: list[str]) -> None:
    members.insert(0, members.pop(draw(st.integers(0, len(members) - 1))))


def _repeat(draw: Any, members: list[str]) -> None:
    """Repeat the name of a member, with the same value or another."""
    member = members[draw(st.integers(0, len(members) - 1))]
    members.insert(draw(st.integers(0, len(members))), draw(st.sampled_from([member, member.replace("1", "2")])))


def _escape(draw: Any, members: list[str]) -> None:
    place = draw(st.integers(0, len(members) - 1))
    members[place] = members[place].replace("s", "\\u0073", 1)


def _extend(draw: Any, members: list[str]) -> None:
    more = draw(st.sampled_from(['"newer":{"data":{}}', '"taskid":null', '"sandboxid":"sbx-2"', '"traceparent":null']))
    members.insert(draw(st.integers(0, len(members))), more)


CHANGES = (_move, _repeat, _escape, _extend)
OURS = (
    '{"specversion":"1.0","id":"01998a2b-0000-7000-8000-000000000001","source":"/sandherd/sandbox/sbx-1",'
    '"type":"agent.message","subject":"sbx-1","time":"2026-10-01T09:00:01.000001Z",'
    '"datacontenttype":"application/json","dataschema":"urn:sandherd:v1:agent.message","sequence":1,'
    '"project":"default","sandboxid":"sbx-1","data":{"content":"a","content_length":1}}'
)
OTHERS = OURS.replace('"id":"01998a2b-0000-7000-8000-000000000001",', "").replace(
    '{"specversion"', '{"id":"01998a2b-0000-7000-8000-000000000002","specversion"'
)


def batch_of(history: Any, texts: list[str]) -> EventBatch:
    """The batch of those documents that event-ingest accepts."""
    batch, [template] = EventBatch(), history.delivered(history.script.messages("sbx-1", 1))
    for text in texts:
        history.place += 1
        try:
            batch.add(0, template._replace(data=text.encode(), stream_sequence=history.place))
        except ContractError:
            continue
    return batch


def test_every_document_is_returned_to_the_letter(postgres: str, open_history: Any, script: Any) -> None:
    """Documents in any accepted form are returned unchanged, and only those in our own form are short."""
    forms: Counter[bool] = Counter()
    with asyncio.Runner() as runner:
        opened = open_history(postgres)
        history = runner.run(opened.__aenter__())
        history.script = script

        @settings(max_examples=60, deadline=None)
        @example([OURS, OTHERS])
        @given(st.lists(documents(), min_size=1, max_size=20, unique_by=lambda text: text[30:]))
        def check(texts: list[str]) -> None:
            forms.update(runner.run(_stored_and_read(history, batch_of(history, texts))))

        try:
            check()
        finally:
            runner.run(opened.__aexit__(None, None, None))
    assert min(forms[False], forms[True]) > 0, "both forms were stored"


async def _stored_and_read(history: Any, batch: EventBatch) -> list[bool]:
    """Store the documents and compare; returns for each row whether it is short."""
    if not batch.rows:
        return []
    async with history.database.writing() as connection:
        await connection.execute("delete from events; delete from sources")
    result = await store(history.database, batch)
    rows = await history.rows(READ)
    assert len(rows) == result.new
    known = {row[10]: row for row in batch.rows}
    for row in rows:
        original = known[row["document"]]
        assert row["size"] == len(original[10].encode())
        assert (row["source"], row["taskid"], row["sandboxid"]) == (original[7], original[8], original[9])
        assert row["stored"] == original[10] or len(row["stored"]) < len(original[10]) - 200
    return [row["stored"] != row["document"] for row in rows]


async def test_events_of_today_are_short(history: Any, script: Any) -> None:
    """Only data and trace of an event as published today are stored, with or without a task, of any source."""
    agents = [
        script.agent("agent.message", "sbx-1", content="a", content_length=1, **more) for more in ({}, {"taskid": "t"})
    ]
    traced = agents[0].model_copy(
        update={"sequence": 9, "traceparent": TRACE[15:-1], "id": script.messages("sbx-1", 1)[0].id}
    )
    events = [*agents, traced, *script.life("task-1", "sbx-1")]
    assert await history.deliver(events) == [DONE] * len(events)
    rows = await history.rows(READ)
    assert [row["document"] for row in rows] == [event.to_json().decode() for event in events]
    assert all(row["stored"].startswith(('{"data":{', '{"traceparent":')) for row in rows)
    assert [json.loads(row["data"]) for row in rows] == [json.loads(event.to_json())["data"] for event in events]
    raw = await history.rows("select source, taskid, sandboxid from events order by stream_sequence limit 2")
    assert [tuple(row.values()) for row in raw] == [("", "", ""), ("", "t", "")]


async def test_document_that_only_looks_like_our_form_is_whole(history: Any, script: Any) -> None:
    """The data of a similar document, here with an invalid trace in a member's name and in an object, are found."""
    [event] = script.messages("sbx-1", 1)
    text, scope = event.to_json().decode(), '"project":"default","sandboxid":"sbx-1",'
    head, data = text.split(scope)
    trace = '"traceparent":"00","'
    named = f"{trace:a<71}\\{scope}{data[:-1]},{scope}{TRACE}}}"
    inner = f'{trace:a<69}":{{{scope}{data},{scope}{TRACE},{data}'
    history.script = script
    for content in (named, inner):
        assert await _stored_and_read(history, batch_of(history, [head + content])) == [False]
        [row] = await history.rows(READ)
        assert json.loads(row["data"]) == json.loads(text)["data"]


async def test_rows_from_before_are_read(history: Any) -> None:
    """Whole documents of an earlier version are read, also with NULs, and if they begin like a short one."""
    whole = ['{"specversion":"1.0","data":{"content":"\\u0000"}}', '{"data":{"content":"é"},"specversion":"1.0"}']
    insert = """
insert into events (id, stream_sequence, sequence, size, time, project, entity, type, source, envelope)
values (gen_random_uuid(), $1, 1, $2, now(), 'default', 'sbx-1', 'agent.message', '/sandherd/sandbox/sbx-1', $3)
"""
    async with history.database.writing() as connection:
        for place, document in enumerate(whole):
            await connection.execute(insert, place, len(document.encode()), document)
    assert [
        row["document"]
        for row in await history.rows("select event_document(e) as document from events e order by stream_sequence")
    ] == whole


async def test_short_rows_wait_for_the_previous_version(postgres_server: Any, open_history: Any, script: Any) -> None:
    """While a service of the previous version may run, rows are whole; after the last migration new ones are short."""
    await postgres_server.create_database("upgraded")
    url, events = postgres_server.url("upgraded"), script.messages("sbx-1", 3)
    connection = await asyncpg.connect(url)
    await migrate(connection, after=False)
    async with open_history(url) as history:
        await history.deliver(events[:2])
    await migrate(connection)
    async with open_history(url) as history:
        history.place = 3
        await history.deliver(events[2:])
        page = await read_trajectory(connection, GetTrajectory(sandbox="sbx-1"), "default", 1_000_000)
        rows = await history.rows(READ)
    await connection.close()
    await drop_database(postgres_server, "upgraded")
    assert [len(row["stored"]) < row["size"] for row in rows] == [False, False, True]
    assert [event.envelope for event in read_answer(page).events] == [json.loads(event.to_json()) for event in events]
