"""Pages contain every event once, in both directions, whatever its size."""

from typing import Any

import pytest

from event_ingest.queries.events import list_events
from event_ingest.queries.tasks_and_sandboxes import list_sandboxes, list_tasks
from event_ingest.queries.trajectory import read_trajectory
from event_ingest.queries.transcript import read_transcript
from sandherd.bus.consumers.consumer import Dead
from sandherd.client.events.decoder import from_history
from sandherd.contracts.errors import Code, ContractError
from sandherd.contracts.requests import GetTrajectory, GetTranscript, ListEvents, ListPastSandboxes, ListPastTasks
from sandherd.contracts.requests.base import Reply
from sandherd.contracts.states import TaskState
from sandherd.service.encoded_answer import encode_reply
from tests.encoded_answers import read_answer

MAX_BYTES = 1_000_000


class Asker:
    def __init__(self, history: Any, project: str = "default", max_bytes: int = MAX_BYTES) -> None:
        self.history, self.project, self.max_bytes = history, project, max_bytes

    async def ask(self, answer: Any, question: Any) -> Any:
        async with self.history.database.reading() as connection:
            answered = await answer(connection, question, self.project, self.max_bytes)
        return read_answer(answered)

    async def walk(self, answer: Any, question: Any) -> list[Any]:
        """All pages from the first one of a request."""
        pages = []
        while True:
            pages.append(await self.ask(answer, question))
            if pages[-1].next_cursor is None:
                return pages
            question = question.model_copy(update={"cursor": pages[-1].next_cursor})


def _ids(pages: list[Any]) -> list[str]:
    """The ids of the events on these pages. Raises `ContractError` if a client can't read one of them."""
    return [str(from_history(event).id) for page in pages for event in page.events]


@pytest.mark.parametrize("limit", [1, 7, 1000])
@pytest.mark.parametrize("project", ["default", "fleet"])
async def test_events_are_walked_once_both_ways(history: Any, script: Any, limit: int, project: str) -> None:
    """Forwards and backwards, each event of three sandboxes is in one page, in the order of the stream."""
    events = [event for place in range(12) for event in script.messages(f"sbx-{place % 3}", 2)]
    await history.deliver(events)
    ids = [str(event.id) for event in events]
    asker = Asker(history, project)
    assert _ids(await asker.walk(list_events, ListEvents(limit=limit))) == ids
    assert _ids(await asker.walk(list_events, ListEvents(limit=limit, newest_first=True))) == ids[::-1]


async def test_events_at_one_position_of_two_streams_are_not_skipped(history: Any, script: Any) -> None:
    """The ids distinguish events with equal positions: a recreated stream counts from 1 again."""
    events = []
    for _ in range(4):
        published = script.messages("sbx-1", 5)
        history.place = 1
        await history.deliver(published)
        events += published
    asker = Asker(history)
    for question in (ListEvents(limit=3), ListEvents(limit=3, newest_first=True), ListEvents(limit=3, sandbox="sbx-1")):
        walked = _ids(await asker.walk(list_events, question))
        assert sorted(walked) == sorted(str(event.id) for event in events)


async def test_page_is_limited_to_the_size_of_a_reply(history: Any, script: Any) -> None:
    """However large events are, each page fits, and none is left out."""
    events = [
        script.agent("agent.message", "sbx-1", content="é" * 1000 * size, content_length=1)
        for size in (1, 50, 2, 59, 3)
    ]
    await history.deliver(events)
    pages = await Asker(history, max_bytes=120_000).walk(list_events, ListEvents(limit=100))
    assert _ids(pages) == [str(event.id) for event in events]
    assert [len(page.events) for page in pages] == [3, 1, 1]
    assert all(len(page.model_dump_json().encode()) < 120_000 + 100 for page in pages)


@pytest.mark.parametrize(("numbers", "omitted"), [(20_000, False), (30_000, True)])
async def test_large_event_hides_no_event_behind_it(history: Any, script: Any, numbers: int, omitted: bool) -> None:
    """An event over the limit is shown without its data. One below it is shown whole, although numbers would grow."""
    [event, after] = script.messages("sbx-1", 2)
    document = event.to_json().replace(b'"turn":0', b'"turn":0,"x":[' + b",".join([b"1e15"] * numbers) + b"]")
    [delivery] = history.delivered([event])
    await history.ingest.handle([delivery._replace(data=document)])
    await history.deliver([after])
    pages = await Asker(history, max_bytes=120_000).walk(list_events, ListEvents(limit=10))
    assert _ids(pages) == [str(event.id), str(after.id)]
    assert ("dataomitted" in pages[0].events[0].envelope) is omitted
    assert len(pages[0].events[0].envelope["data"].get("x", [])) == (0 if omitted else numbers)


@pytest.mark.parametrize("depth", [126, 127, 180, 197, 198, 199])
async def test_deep_event_hides_no_other(history: Any, script: Any, depth: int) -> None:
    """However deep the data of an event is nested, its requester can read the page: deeper than 128 it is not stored.

    A reply nests it deeper, so an event that event-ingest could just read would make the whole page unreadable.
    """
    [event, after] = script.messages("sbx-1", 2)
    document = event.to_json().replace(b'"turn":0', b'"turn":0,"x":' + b"[" * depth + b"0" + b"]" * depth)
    [delivery] = history.delivered([event])
    [outcome] = await history.ingest.handle([delivery._replace(data=document)])
    await history.deliver([after])
    pages = await Asker(history).walk(list_events, ListEvents(limit=10))
    assert _ids(pages) == [str(found.id) for found in ([event, after] if depth <= 126 else [after])]
    assert isinstance(outcome, Dead) is (depth > 126)


@pytest.mark.parametrize("inner", ["", "0"], ids=["empty", "number"])
@pytest.mark.parametrize(("depth", "omitted"), [(127, False), (156, False), (159, True), (190, True), (198, True)])
async def test_stored_event_of_any_depth_hides_no_other(
    history: Any, script: Any, depth: int, omitted: bool, inner: str
) -> None:
    """An earlier version stored events that are deeper. They are shown, without their data if it is too deep."""
    [event, after] = script.messages("sbx-1", 2)
    await history.deliver([event, after])
    document = event.to_json().decode().replace('"turn":0', f'"turn":0,"x":{"[" * depth}{inner}{"]" * depth}')
    async with history.database.writing() as connection:
        replace = "update events set envelope = $1, size = $2 where id = $3"
        await connection.execute(replace, document, len(document), event.id)
    for query, request in ((list_events, ListEvents()), (read_trajectory, GetTrajectory(sandbox="sbx-1"))):
        page = await Asker(history).ask(query, request)
        assert _ids([page]) == [str(event.id), str(after.id)]
        assert ("dataomitted" in page.events[0].envelope) is omitted
    transcript = await Asker(history).ask(read_transcript, GetTranscript(sandbox="sbx-1"))
    assert len(transcript.entries) == 2


@pytest.mark.parametrize("number", [b"1e999", b"-1E+400", b"9" * 309 + b".0", b"[1,\n -1e309]", b"1" * 400])
async def test_huge_number_hides_no_event(history: Any, script: Any, number: bytes) -> None:
    """A number that JSON parsers refuse or read as infinity is null in a reply; a long integer is unchanged."""
    [event, after] = script.messages("sbx-1", 2)
    [delivery] = history.delivered([event])
    document = event.to_json().replace(b'"turn":0', b'"turn":0,"x":' + number)
    await history.ingest.handle([delivery._replace(data=document)])
    await history.deliver([after])
    for query, request in ((list_events, ListEvents()), (read_trajectory, GetTrajectory(sandbox="sbx-1"))):
        page = await Asker(history).ask(query, request)
        assert _ids([page]) == [str(event.id), str(after.id)]
        found = page.events[0].envelope["data"]["x"]
        assert found in (None, [1, None]) or found == int(number)


async def test_reply_has_the_text_that_was_published(history: Any, script: Any) -> None:
    """Numbers, escapes and the order of fields are those of the publisher: the reply contains the event unchanged."""
    [event] = script.messages("sbx-1", 1)
    numbers = b'"turn":0,"x":[1e15,0.10,123456789012345678901234567890,"\\u00e9"]'
    document = event.to_json().replace(b'"turn":0', numbers)
    [delivery] = history.delivered([event])
    await history.ingest.handle([delivery._replace(data=document)])
    async with history.database.reading() as connection:
        events = await list_events(connection, ListEvents(), "default", MAX_BYTES)
        trajectory = await read_trajectory(connection, GetTrajectory(sandbox="sbx-1"), "default", MAX_BYTES)
    for answer in (events, trajectory):
        assert b'"envelope":' + document + b"}" in encode_reply(Reply[Any](ok=answer))


async def test_filters(history: Any, script: Any) -> None:
    """Each filter has the effect that it states, alone and with others."""
    life = script.life("task-1", "sbx-1")
    published = [*life, *script.messages("sbx-1", 3), script.heartbeat("sbx-1"), *script.messages("sbx-2", 2)]
    script.clock = script.clock.replace(day=script.clock.day + 1)
    published += script.messages("sbx-2", 1)
    await history.deliver(published)

    async def found(**filters: Any) -> set[str]:
        return set(_ids(await Asker(history).walk(list_events, ListEvents(limit=2, **filters))))

    def those(condition: Any) -> set[str]:
        return {str(event.id) for event in published if condition(event)}

    assert await found(entity="sbx-1") == those(lambda e: e.subject == "sbx-1")
    assert await found(sandbox="sbx-1") == those(lambda e: e.sandboxid == "sbx-1")
    assert await found(task="task-1") == those(lambda e: e.subject in {"task-1", "sbx-1"})
    assert await found(task="task-1", sandbox="sbx-2") == set()
    assert await found(source="/sandherd/sandbox/sbx-2") == those(lambda e: e.subject == "sbx-2")
    assert await found(types=["agent.*"]) == those(lambda e: e.type.startswith("agent."))
    assert await found(types=["agent.heartbeat", "task.*"]) == those(
        lambda e: e.type == "agent.heartbeat" or e.type.startswith("task.")
    )
    assert await found(since=script.clock) == those(lambda e: e.time >= script.clock)
    assert await found(until=life[3].time) == {str(event.id) for event in life[:3]}
    assert await found(source="/sandherd/sandbox/sbx-1", after_sequence=2) == those(
        lambda e: e.subject == "sbx-1" and e.type.startswith("agent.") and e.sequence > 2
    )
    assert await found(entity="nobody") == set()


async def test_event_with_a_foreign_task_is_not_listed(history: Any, script: Any) -> None:
    """An event in which an agent names another's task is not among that task's events."""
    await history.deliver(script.life("task-1", "sbx-1"))
    liar = script.agent("agent.message", "sbx-2", taskid="task-1", content="x", content_length=1)
    await history.deliver([liar])
    assert str(liar.id) not in _ids(await Asker(history).walk(list_events, ListEvents(task="task-1")))


@pytest.mark.parametrize("limit", [1, 4, 100])
async def test_a_trajectory_is_walked_both_ways(history: Any, script: Any, limit: int) -> None:
    """Pages are full without heartbeats, have the total counts, and a cursor only if there is more."""
    events: list[Any] = []
    for _ in range(11):
        events += [*script.messages("sbx-1", 1), script.heartbeat("sbx-1")]
    await history.deliver([*events, *script.messages("sbx-2", 3)])
    ids = [str(event.id) for event in events if event.type != "agent.heartbeat"]
    asker = Asker(history)
    newer = await asker.walk(read_trajectory, GetTrajectory(sandbox="sbx-1", limit=limit))
    older = await asker.walk(read_trajectory, GetTrajectory(sandbox="sbx-1", limit=limit, direction="older"))
    assert _ids(newer) == ids
    assert _ids(older[::-1]) == ids
    for pages in (newer, older):
        assert [len(page.events) for page in pages[:-1]] == [limit] * (len(pages) - 1)
        assert [page.has_more for page in pages] == [True] * (len(pages) - 1) + [False]
        assert [page.prev_cursor is not None for page in pages] == [False] + [True] * (len(pages) - 1)
        assert {(page.total_events, page.trajectory_events) for page in pages} == {(22, 11)}
        summary = pages[0].heartbeat_summary
        assert (summary.count, summary.first_heartbeat, summary.last_heartbeat) == (11, events[1].time, events[-1].time)


async def test_the_way_back_meets_the_page_before(history: Any, script: Any) -> None:
    """`prev_cursor`, in the other direction, yields exactly the previous page."""
    await history.deliver(script.messages("sbx-1", 9))
    asker = Asker(history)
    first = await asker.ask(read_trajectory, GetTrajectory(sandbox="sbx-1", limit=3))
    second = await asker.ask(read_trajectory, GetTrajectory(sandbox="sbx-1", limit=3, cursor=first.next_cursor))
    back = await asker.ask(
        read_trajectory, GetTrajectory(sandbox="sbx-1", limit=3, cursor=second.prev_cursor, direction="older")
    )
    assert back.events == first.events
    assert not back.has_more
    assert back.prev_cursor is not None


async def test_invalid_cursor_is_refused(history: Any, script: Any) -> None:
    """A changed, invented or foreign cursor is refused by name, and is never replaced by the first page."""
    await history.deliver([*script.messages("sbx-1", 4), *script.messages("sbx-2", 4)])
    asker = Asker(history)
    good = (await asker.ask(read_trajectory, GetTrajectory(sandbox="sbx-1", limit=2))).next_cursor
    changed = good[:-2] + ("A" if good[-2] != "A" else "B") + good[-1]
    for cursor, sandbox in ((changed, "sbx-1"), ("", "sbx-1"), ("bm9uZQ", "sbx-1"), ("é", "sbx-1"), (good, "sbx-2")):
        with pytest.raises(ContractError) as refused:
            await asker.ask(read_trajectory, GetTrajectory(sandbox=sandbox, limit=2, cursor=cursor))
        assert (refused.value.problem.code, refused.value.problem.field) == (Code.INVALID_FIELD, "cursor")
    with pytest.raises(ContractError):
        await Asker(history, "other").ask(list_events, ListEvents(cursor=good))


async def test_tasks_and_sandboxes_newest_first(history: Any, script: Any) -> None:
    """Tasks and sandboxes are listed once each, newest first, with the facts from their events; filters apply."""
    for place in range(5):
        await history.deliver(script.life(f"task-{place}", f"sbx-{place}"))
        await history.deliver(script.messages(f"sbx-{place}", 2))
    await history.deliver([script.heartbeat("sbx-0")])
    asker = Asker(history)
    tasks = [task for page in await asker.walk(list_tasks, ListPastTasks(limit=2)) for task in page.tasks]
    boxes = [box for page in await asker.walk(list_sandboxes, ListPastSandboxes(limit=2)) for box in page.sandboxes]
    assert [task.task for task in tasks] == [f"task-{place}" for place in (4, 3, 2, 1, 0)]
    assert {(task.state, task.text, task.result["exit_code"]) for task in tasks} == {
        ("completed", "compute C(50, 25)", 0)
    }
    assert all(task.submitted_at < task.started_at < task.ended_at for task in tasks)
    assert [box.sandbox for box in boxes] == [f"sbx-{place}" for place in (4, 3, 2, 1, 0)]
    last = boxes[-1]
    assert (last.task, last.state, last.isolation, last.reason) == ("task-0", "terminated", "bubblewrap", "completed")
    assert (last.events, last.last_heartbeat_at) == (8, last.last_event_at)
    assert (await asker.ask(list_tasks, ListPastTasks(state=TaskState.FAILED))).tasks == []
    assert [task.task for task in (await asker.ask(list_tasks, ListPastTasks(task="task-3"))).tasks] == ["task-3"]
    for text, count in (("TASK-3", 1), ("compute c(", 5), ("100%", 0), ("task_3", 0)):
        assert len((await asker.ask(list_tasks, ListPastTasks(contains=text))).tasks) == count


async def test_another_projects_data_is_not_shown(history: Any, script: Any) -> None:
    """With the same names in two projects, each client sees its own data, and `fleet` sees both."""
    for project in ("one", "two"):
        await history.deliver(script.life("task-1", "sbx-1", project=project))
        await history.deliver(script.messages("sbx-1", 3, project=project))
    questions = [
        (list_events, question)
        for question in (
            ListEvents(),
            ListEvents(entity="sbx-1"),
            ListEvents(sandbox="sbx-1"),
            ListEvents(task="task-1"),
            ListEvents(source="/sandherd/sandbox/sbx-1"),
            ListEvents(types=["agent.*"], newest_first=True),
        )
    ] + [(read_trajectory, GetTrajectory(sandbox="sbx-1"))]
    for answer, question in questions:
        seen = await Asker(history, "one").ask(answer, question)
        assert seen.events
        assert {event.envelope["project"] for event in seen.events} == {"one"}
        both = await Asker(history, "fleet").ask(answer, question)
        assert {event.envelope["project"] for event in both.events} == {"one", "two"}
        assert len(both.events) == 2 * len(seen.events)
    trajectory = await Asker(history, "one").ask(read_trajectory, GetTrajectory(sandbox="sbx-1"))
    assert trajectory.total_events == 8
    assert {task.project for task in (await Asker(history, "two").ask(list_tasks, ListPastTasks())).tasks} == {"two"}
    boxes = (await Asker(history, "two").ask(list_sandboxes, ListPastSandboxes())).sandboxes
    assert [(box.project, box.events) for box in boxes] == [("two", 8)]
    with pytest.raises(ContractError) as refused:
        await Asker(history, "three").ask(read_trajectory, GetTrajectory(sandbox="sbx-1"))
    assert refused.value.problem.code is Code.NOT_FOUND


@pytest.mark.parametrize(
    ("question", "field"),
    [
        (ListEvents(types=["moon"]), "types.0"),
        (ListEvents(types=["agent.tool_use", "a.b'; --"]), "types.1"),
        (ListEvents(types=["*"]), "types.0"),
        (ListEvents(after_sequence=3), "after_sequence"),
    ],
)
async def test_meaningless_filter_is_refused(history: Any, question: ListEvents, field: str) -> None:
    """A filter that could never match, or would match by accident, is refused by its name."""
    with pytest.raises(ContractError) as refused:
        await Asker(history).ask(list_events, question)
    assert (refused.value.problem.code, refused.value.problem.field) == (Code.INVALID_FIELD, field)


async def test_text_refused_by_postgres_is_an_invalid_field(history: Any) -> None:
    """A source with a NUL is an error of the client, and not an unavailable database."""
    with pytest.raises(ContractError) as refused:
        await Asker(history).ask(list_events, ListEvents(source="/sandherd/\x00"))
    assert refused.value.problem.code is Code.INVALID_FIELD
