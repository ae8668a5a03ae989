"""Full-text search, comparisons, and versions of files, from a real database."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from event_ingest.partition_indexes import create_missing, missing_term_indexes
from event_ingest.queries import search
from event_ingest.queries.comparison import compare_sandboxes
from event_ingest.queries.file_versions import list_file_versions
from event_ingest.queries.search import search_events
from event_ingest.schema import partition_name
from event_ingest.search_texts import SEARCHED_TYPES, term_index
from sandherd.contracts.errors import Code, ContractError
from sandherd.contracts.names import FLEET
from sandherd.contracts.requests import GetComparison, ListFileVersions, SearchEvents
from sandherd.service.cursors import write_cursor
from tests.integration.event_ingest.conftest import delivered
from tests.integration.event_ingest.test_ingest_statistics import ask

TEXTS: dict[str, dict[str, Any]] = {
    "agent.message": {"content": "TEXT", "content_length": 1},
    "agent.thinking": {"content": "TEXT"},
    "agent.user_message": {"content": "TEXT", "content_length": 1},
    "agent.message_injected": {
        "content": "TEXT", "content_length": 1, "message_type": "user_message", "message_id": "msg-1",
    },
    "agent.message_sent": {"content": "TEXT", "recipient": "sbx-9", "message_id": "msg-1"},
    "agent.tool_use": {"tool": "Bash", "tool_use_id": "t", "input": {"command": "ls\nTEXT", "nested": {"a": ["TEXT"]}}},
    "agent.file_edited": {"file_path": "src/a.py", "change_type": "modified", "full_diff": "+x\n+TEXT"},
    "agent.tool_result": {"tool_use_id": "t", "result": "TEXT"},
    "agent.error": {"error": "TEXT"},
    "agent.stream_error": {"error": "TEXT"},
    "agent.failed": {"error": "TEXT", "error_type": "internal"},
    "agent.completed": {"final_output": "TEXT"},
    "task.submitted": {"task": "TEXT", "harness": "command", "runtime": "process"},
}  # fmt: skip


def with_text(value: Any, text: str) -> Any:
    if isinstance(value, dict):
        return {name: with_text(one, text) for name, one in value.items()}
    if isinstance(value, list):
        return [with_text(one, text) for one in value]
    return value.replace("TEXT", text) if isinstance(value, str) else value


def event(script: Any, event_type: str, text: str, sandbox: str = "sbx-1", **more: Any) -> Any:
    data = with_text(TEXTS[event_type], text)
    if event_type == "task.submitted":
        return script.spawner(event_type, "task-1", taskid="task-1", **data, **more)
    return script.agent(event_type, sandbox, **data, **more)


async def found(history: Any, text: str, project: str = "default", **more: Any) -> list[Any]:
    hits = (await ask(history, search_events, SearchEvents(text=text, **more), project)).hits
    for hit in hits:
        shown = {hit.snippet[one.start : one.end].lower() for one in hit.matches}
        assert shown, hit
        assert len(hit.snippet) <= 240
    return list(hits)


async def test_each_searched_type_is_found_with_its_snippet(history: Any, script: Any) -> None:
    """For every type the index and the snippet have the same words; words are separated as in code."""
    assert set(TEXTS) == set(SEARCHED_TYPES)
    text = "before <b>get_user_name(src/app/main.py:12)</b> Grüße 日本 after"
    await history.deliver([event(script, event_type, text) for event_type in TEXTS])
    for query in ("username", "user_names", "ain.py", "nothing"):
        assert await found(history, query) == [], query
    for query in ("get_user_name", "USER", "src/app/main.py", '"main py 12"', "grüße after", "日本", "missing or user"):
        assert {hit.type for hit in await found(history, query)} == set(TEXTS), query
    assert await found(history, "user -after") == []
    kinds = {hit.kind for hit in await found(history, "user", kinds=["diff", "command"])}
    assert kinds == {"diff", "command"}
    [bash] = await found(history, "bash ls")
    assert (bash.type, bash.entity) == ("agent.tool_use", "sbx-1")
    [path] = await found(history, "a.py")
    assert path.kind == "diff"


async def test_search_is_restricted_to_project_entities_and_time(history: Any, script: Any) -> None:
    """A search finds only its project's, sandbox's, task's and time's hits, newest first; an operator finds all."""
    script.clock = datetime.now(UTC)
    await history.deliver(script.life("task-1", "sbx-1"))
    for number, (project, sandbox) in enumerate((("default", "sbx-1"), ("default", "sbx-2"), ("other", "sbx-1"))):
        await history.deliver([event(script, "agent.message", f"needle {number}", sandbox, project=project)])
    hits = await found(history, "needle")
    assert [hit.entity for hit in hits] == ["sbx-2", "sbx-1"]
    assert len(await found(history, "needle", FLEET)) == 3
    assert [hit.entity for hit in await found(history, "needle", sandbox="sbx-1")] == ["sbx-1"]
    assert [hit.entity for hit in await found(history, "needle", task="task-1")] == ["sbx-1"]
    assert await found(history, "needle", task="task-1", sandbox="sbx-2") == []
    assert await found(history, "needle", task="task-9") == []
    assert [hit.entity for hit in await found(history, "needle", since=hits[0].time)] == ["sbx-2"]
    assert [hit.entity for hit in await found(history, "needle", until=hits[0].time)] == ["sbx-1"]
    assert await found(history, "needle", since=hits[0].time, until=hits[0].time - timedelta(days=9)) == []


@pytest.mark.parametrize("portion", [2, search.PORTION])
async def test_pages_have_each_hit_once(
    history: Any, script: Any, portion: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Across pages and partitions each hit comes once; a cursor of another project or text is refused."""
    monkeypatch.setattr(search, "PORTION", portion)
    events = [event(script, "agent.message", f"needle {number}") for number in range(7)]
    days = [datetime.now(UTC) + timedelta(days=offset) for offset in (-1, 0, 0, 1, -400, 1, 400)]
    moved = [
        one.model_copy(update={"id": _id_at(day, n)}) for n, (one, day) in enumerate(zip(events, days, strict=True))
    ]
    await history.deliver(moved)
    question, snippets = SearchEvents(text="needle", limit=2), []
    while True:
        page = await ask(history, search_events, question)
        snippets += [hit.snippet for hit in page.hits]
        if page.next_cursor is None:
            break
        question = question.model_copy(update={"cursor": page.next_cursor})
    order = ["5", "3", "2", "1", "0", "6", "4"]
    assert snippets == [f"needle {number}" for number in order]
    for changed, project in ((question, "other"), (question.model_copy(update={"text": "other"}), "default")):
        with pytest.raises(ContractError) as refused:
            await ask(history, search_events, changed, project)
        assert refused.value.problem.field == "cursor"
    small = await ask(history, search_events, SearchEvents(text="needle", limit=7), budget=600)
    assert 1 <= len(small.hits) < 7
    assert small.next_cursor is not None


async def test_letters_that_are_escaped_hide_nothing(history: Any, script: Any) -> None:
    """An event is found although its publisher has written any letters as JSON escapes, also on the same day."""
    published = event(script, "agent.message", "needle in hay")
    [delivery] = delivered([published], history.place)
    escaped = delivery.data.replace(b"needle", rb"n\u0065edle")
    await history.ingest.handle([delivery._replace(data=escaped)])
    assert [hit.snippet for hit in await found(history, "needle")] == ["needle in hay"]


@pytest.mark.parametrize("escaped", [False, True])
async def test_capitals_whose_lower_case_is_ascii_hide_nothing(history: Any, script: Any, escaped: bool) -> None:
    """The sign of the unit kelvin is a k in lower case: it is found with and without an index, also as an escape."""
    now = datetime.now(UTC)
    texts = ["needle \N{KELVIN SIGN}EY", "needle \N{LATIN CAPITAL LETTER I WITH DOT ABOVE}NDEX", "needle ÄPFEL"]
    for number, text in enumerate(texts):
        published = event(script, "agent.message", text).model_copy(
            update={"id": _id_at(now - timedelta(days=1), number)}
        )
        [delivery] = delivered([published], history.place)
        ascii_only = json.dumps(json.loads(delivery.data)).encode()
        await history.ingest.handle([delivery._replace(data=ascii_only) if escaped else delivery])
    queries = ("key", "index", "needle key", "key or index", '"needle index"', "needle -key", '"needle äpfel"')
    before = [[hit.id for hit in await found(history, query)] for query in queries]
    assert [len(ids) for ids in before] == [1, 1, 1, 2, 1, 2, 1]
    async with history.database.maintaining() as connection:
        await create_missing(connection, now + timedelta(days=1))
    assert [[hit.id for hit in await found(history, query)] for query in queries] == before


@pytest.mark.parametrize("before", ["x", "7", "00000000-0000-0000-0000"])
async def test_forged_position_is_refused(history: Any, script: Any, before: str) -> None:
    """A client can compute the seal of a cursor: an invalid id in it is an error of the client."""
    await history.deliver([event(script, "agent.message", "needle")])
    question = SearchEvents(text="needle")
    for name in (partition_name(datetime.now(UTC).date()), "events_default"):
        forged = question.model_copy(update={"cursor": write_cursor(question, "default", [name, before])})
        with pytest.raises(ContractError) as refused:
            await ask(history, search_events, forged)
        assert (refused.value.problem.code, refused.value.problem.field) == (Code.INVALID_FIELD, "cursor")


async def test_days_that_are_over_get_an_index_of_words(history: Any, script: Any) -> None:
    """Searches find the same with and without the index, also after an interrupted run; today has no index yet.

    An event of a day is not indexed while it is stored.
    """
    now = datetime.now(UTC)
    noon = now.replace(hour=12) - timedelta(days=1)
    now, published = now.replace(hour=2), [noon, noon - timedelta(hours=1), now]  # the same at every time of the day
    events = [event(script, "agent.message", f"needle Grüße {n} ''x\\y") for n in range(3)]
    await history.deliver(
        [
            one.model_copy(update={"id": _id_at(at, n)})
            for n, (one, at) in enumerate(zip(events, published, strict=True))
        ]
    )
    queries = ("needle", "grüße", '"needle grüße 1"', "0 or 2", "needle -1", "x y", "absent")
    before = [await found(history, query) for query in queries]
    assert [len(hits) for hits in before] == [3, 3, 1, 2, 2, 3, 0]
    async with history.database.maintaining() as connection:
        over = {name for name, _ in await missing_term_indexes(connection, now)}
        assert term_index(partition_name(now.date())) not in over
        assert term_index(partition_name(noon.date())) in over
        name, statements = (await missing_term_indexes(connection, now))[0]
        await connection.execute(statements[0])
        await connection.execute(f"update pg_index set indisvalid = false where indexrelid = '{name}'::regclass")
        assert [await found(history, query) for query in queries] == before
        await create_missing(connection, now)
        assert await missing_term_indexes(connection, now) == []
    assert [await found(history, query) for query in queries] == before


def _id_at(moment: datetime, number: int) -> Any:
    from uuid import UUID

    return UUID(int=(int(moment.timestamp() * 1000) << 80) | (7 << 76) | (2 << 62) | number)


@pytest.mark.parametrize("text", ["-needle", "...", "-a -b", '""', "'; drop table events; --"])
async def test_hostile_search_texts_are_refused_or_find_nothing(history: Any, script: Any, text: str) -> None:
    """Texts with only exclusions, or no word, are refused with the field; in others all characters are words."""
    await history.deliver([event(script, "agent.message", "needle")])
    if "drop" in text:
        assert await found(history, text) == []
        return
    with pytest.raises(ContractError) as refused:
        await found(history, text)
    assert (refused.value.problem.code, refused.value.problem.field) == (Code.INVALID_FIELD, "text")


async def test_large_and_strange_texts_are_stored_and_found(history: Any, script: Any) -> None:
    """Long words, many words and control characters break no batch; the beginning of a long text is searched."""
    texts = [
        "x" * 5000 + " needle",
        " ".join(f"w{n}" for n in range(30_000)) + " last",
        "\x1b[31mneedle\x07",
        "\ud7ff\u00a0needle",
    ]
    outcomes = await history.deliver([event(script, "agent.message", text) for text in texts])
    assert all(type(outcome).__name__ == "Done" for outcome in outcomes), outcomes
    assert len(await found(history, "needle")) == 3
    assert len(await found(history, "w100")) == 1
    assert await found(history, "last") == []


async def test_comparison_is_exact_for_both(history: Any, script: Any) -> None:
    """Types, turns, tools with failures and times, files with the equality of their content, and totals are exact.

    Events after the end of a sandbox are not part of its duration.
    """
    life = script.life("task-1", "sbx-1")
    await history.deliver(life)
    for sandbox, digest in (("sbx-1", "a" * 64), ("sbx-2", "b" * 64)):
        await history.deliver(
            [
                script.agent("agent.turn_started", sandbox, turn=1),
                script.agent("agent.tool_use", sandbox, turn=1, tool="Bash", tool_use_id="t1"),
                script.agent("agent.tool_result", sandbox, turn=1, tool_use_id="t1", result="no", is_error=True),
                script.agent("agent.tool_completed", sandbox, turn=1, tool_use_id="t1", tool="Bash"),
                script.agent("agent.file_edited", sandbox, turn=1, file_path="a.py", change_type="created",
                             lines_added=3, content_sha256="a" * 64),
                script.agent("agent.file_edited", sandbox, turn=1, file_path="a.py", change_type="modified",
                             lines_added=1, lines_removed=2, content_sha256=digest),
                script.agent("agent.file_edited", sandbox, file_path=f"{sandbox}.py", change_type="deleted"),
                script.agent("agent.usage", sandbox, turn=1, input_tokens=5, cost_micro_usd=7),
            ]
        )  # fmt: skip
    await history.deliver([script.agent("agent.turn_started", "sbx-2", turn=2)])
    shown = await ask(history, compare_sandboxes, GetComparison(first="sbx-1", second="sbx-2"))
    assert (shown.first.task, shown.first.turns, shown.second.turns) == ("task-1", 1, 2)
    own = [event.time for event in life if event.subject == "sbx-1"]
    assert shown.first.seconds == (own[-1] - own[0]).total_seconds()
    assert shown.second.seconds == (shown.second.last_event_at - shown.second.first_event_at).total_seconds()
    assert shown.first.last_event_at > own[-1]
    assert (shown.first.cost_micro_usd, shown.first.tool_calls, shown.first.lines_added) == (7, 1, 4)
    assert {row.type: (row.first, row.second) for row in shown.types}["agent.turn_started"] == (1, 2)
    assert [(row.turn, row.first is None, row.second is None) for row in shown.turns] == [
        (1, False, False), (2, True, False),
    ]  # fmt: skip
    [bash] = shown.tools
    assert (bash.tool, bash.first.calls, bash.first.failed, bash.first.milliseconds) == ("Bash", 1, 1, 1000.0)
    assert [(row.file_path, row.same_content) for row in shown.files] == [
        ("a.py", False), ("sbx-1.py", None), ("sbx-2.py", None),
    ]  # fmt: skip
    assert (shown.files[0].first.changes, shown.files[0].first.change_type) == (2, "modified")
    same = await ask(history, compare_sandboxes, GetComparison(first="sbx-1", second="sbx-1"))
    assert same.files[0].same_content
    assert not same.cut
    assert (await ask(history, compare_sandboxes, GetComparison(first="sbx-1", second="sbx-2"), budget=2300)).cut
    with pytest.raises(ContractError) as unknown:
        await ask(history, compare_sandboxes, GetComparison(first="sbx-1", second="sbx-2"), "other")
    assert unknown.value.problem.code is Code.NOT_FOUND


async def test_versions_of_files_are_numbered_in_the_order_of_changes(history: Any, script: Any) -> None:
    """Versions are numbered per path, in pages of any size, in both directions; diffs come only on request."""

    def edit(path: str, change: str, **more: Any) -> Any:
        return script.agent("agent.file_edited", "sbx-1", file_path=path, change_type=change, **more)

    await history.deliver(
        [
            edit("a.py", "created", full_diff="@@ -0,0 +1 @@\n+x\n", lines_added=1),
            edit("b.py", "created", full_diff=""),
            edit("a.py", "modified", diff_preview="@@ cut"),
            edit("c.py", "renamed", previous_path="b.py"),
            edit("a.py", "modified", project="other"),
            script.agent("agent.file_edited", "sbx-2", file_path="a.py", change_type="deleted"),
        ]
    )
    question, found = ListFileVersions(sandbox="sbx-1", limit=1, diffs=True), []
    while True:
        page = await ask(history, list_file_versions, question)
        found += page.versions
        if page.next_cursor is None:
            break
        question = question.model_copy(update={"cursor": page.next_cursor})
    assert [(one.file_path, one.number, one.diff_complete) for one in found] == [
        ("a.py", 1, True), ("b.py", 1, True), ("a.py", 2, False), ("c.py", 1, False),
    ]  # fmt: skip
    assert (found[1].diff, found[2].diff, found[3].previous_path) == ("", "@@ cut", "b.py")
    newest = ListFileVersions(sandbox="sbx-1", file_path="a.py", newest_first=True)
    versions = (await ask(history, list_file_versions, newest)).versions
    assert [(one.number, one.diff) for one in versions] == [(2, None), (1, None)]
    assert (await ask(history, list_file_versions, ListFileVersions(sandbox="sbx-1", file_path="z"))).versions == []
    with pytest.raises(ContractError) as unknown:
        await ask(history, list_file_versions, ListFileVersions(sandbox="sbx-1"), "third")
    assert unknown.value.problem.code is Code.NOT_FOUND
