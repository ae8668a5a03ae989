"""A project may read its own dead letters."""

import asyncio
from typing import Any

import pytest

from event_ingest.queries import dead_letters
from sandherd.bus.connection import RefusedError
from sandherd.bus.direct_get import StoredMessage
from sandherd.contracts.errors import Code
from sandherd.contracts.requests import DeadLetter, ListDeadLetters
from sandherd.contracts.subjects import Principal, event_subject
from tests.integration.bus.test_bus_hostile_bytes import TOKENS, send


async def test_a_project_reads_its_own_dead_letters_and_no_others(running: Any) -> None:
    """A project reads only its own dead letters, also if it is named like a service or an action in subjects."""
    for project in ("default", "other"):
        bus = await running.bus(Principal.WORKER, project=project, sandbox="sbx-1")
        await bus.publish(event_subject(project, "sbx-1", "agent.message"), b"{}", msg_id=project)
    letters = {letter.subject.split(".")[3]: letter.number for letter in (await _all(running, 2)).letters}
    for project in ("default", "spawner", "message"):
        asker = await running.bus(Principal.CLIENT, project=project)
        seen = (await asker.ask(ListDeadLetters(), project)).letters
        assert [letter.number for letter in seen] == ([letters["default"]] if project == "default" else [])
        with pytest.raises(RefusedError) as refused:
            await asker.ask(ListDeadLetters(number=letters["other"]), project)
        assert refused.value.problem.code is Code.NOT_FOUND


async def test_list_of_dead_letters_holds_no_payloads(running: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page does not load the payloads of large letters, which it does not show; sizes are those stored."""
    held: list[int] = []
    parse = dead_letters._parse_letter

    def noting(found: StoredMessage) -> DeadLetter:
        held.append(len(found.data))
        return parse(found)

    monkeypatch.setattr(dead_letters, "_parse_letter", noting)
    bus = await running.bus(Principal.WORKER, sandbox="sbx-1")
    await bus.publish(event_subject("default", "sbx-1", "agent.message"), b"x" * 100_000, msg_id="large")
    (letter,) = (await _all(running, 1)).letters
    assert letter.size == 100_000
    assert held
    assert set(held) == {0}


async def test_a_page_of_dead_letters_ends_after_reading_enough_of_others(
    running: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many letters other projects have, a page ends after a limit; the last one has no cursor."""
    monkeypatch.setattr(dead_letters, "_WINDOW_SEQUENCES", 2)
    monkeypatch.setattr(dead_letters, "_MAX_WINDOWS", 2)
    bus = await running.bus(Principal.WORKER, sandbox="sbx-1")
    for place in range(11):
        await bus.publish(event_subject("default", "sbx-1", "agent.message"), b"{}", msg_id=str(place))
    await _dead_pages(running, "default", 11)
    asker = await running.bus(Principal.CLIENT, project="other")
    assert [len(page.letters) for page in await _pages(asker, "other")] == [0, 0, 0]


async def test_messages_of_any_bytes_are_dead_letters(running: Any, script: Any) -> None:
    """A message with any bytes in its subject and headers is a readable dead letter, and events are stored."""
    await send(await running.bus(Principal.WORKER, project="p1", sandbox="sbx-1"))
    await running.emit([script.heartbeat("sbx-1")])
    await running.stored(1)
    state = (await (await running.bus(Principal.EVENT_INGEST)).js.stream_info("EVENTS")).state
    letters = (await _all(running, state.messages - 1)).letters
    assert len(letters) == state.messages - 1 > len(TOKENS)
    assert {".".join(letter.subject.split(".")[:5]) for letter in letters} == {"sandherd.v1.event.p1.sbx-1"}


async def _dead_pages(running: Any, project: str, count: int) -> None:
    asker = await running.bus(Principal.CLIENT, project=project)
    while True:
        pages = await _pages(asker, project)
        numbers = [letter.number for page in pages for letter in page.letters]
        assert numbers == sorted(set(numbers), reverse=True)
        if len(numbers) == count:
            return
        await asyncio.sleep(0.01)


async def _pages(asker: Any, project: str) -> list[Any]:
    pages = [await asker.ask(ListDeadLetters(), project)]
    while pages[-1].next_cursor is not None:
        pages.append(await asker.ask(ListDeadLetters(cursor=pages[-1].next_cursor), project))
    return pages


async def _all(running: Any, count: int) -> Any:
    while True:
        letters = await running.ask(ListDeadLetters())
        if len(letters.letters) == count:
            return letters
        await asyncio.sleep(0.01)
