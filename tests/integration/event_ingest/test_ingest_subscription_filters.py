"""Filters of subscriptions: types, entities and the start; and their changes."""

import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from sandherd.bus.connection import RefusedError
from sandherd.contracts.errors import Code
from sandherd.contracts.events import EVENTS
from sandherd.contracts.requests import ListEvents, Subscribe
from sandherd.contracts.subjects import Principal, request_subject
from tests.integration.event_ingest.test_ingest_subscriptions import subscribe, subscriptions, take, waits, words


async def test_a_subscription_has_the_events_about_what_it_names(running: Any, script: Any) -> None:
    """A subscription to one of two sandboxes has its events, or with a type only those of that type."""
    one, two = script.messages("sbx-1", 3, project="p1"), script.messages("sbx-2", 3, project="p1")
    await running.emit([*one, *two])
    about = await subscribe(running, "about", start="all", entities=["sbx-2"])
    narrow = await subscribe(running, "narrow", start="all", entities=["sbx-2", "sbx-1"], types=["task", "agent.*"])
    assert (about.entities, about.waiting) == (["sbx-2"], 3)
    assert (narrow.entities, narrow.types, narrow.waiting) == (["sbx-1", "sbx-2"], ["agent", "task"], 6)
    assert sorted(words(await take(running, about, 3))) == sorted(event.data.content for event in two)
    assert (await subscribe(running, "none", start="all", entities=["sbx-1"], types=["task"])).waiting == 0


async def test_a_subscription_is_changed_and_keeps_its_position(running: Any, script: Any) -> None:
    """Acknowledged events are not redelivered; after the change only events of the new filter are delivered."""
    await running.emit(script.messages("sbx-1", 2, project="p1"))
    first = await subscribe(running, start="all", types=["agent"])
    await take(running, first, 2)
    with pytest.raises(RefusedError) as refused:
        await subscribe(running, start="all", entities=["sbx-2"])
    assert (refused.value.problem.code, refused.value.problem.field) == (Code.CONFLICT, "types")
    changed = await subscribe(running, entities=["sbx-2"], update=True)
    assert (changed.consumer, changed.types, changed.entities) == (first.consumer, [], ["sbx-2"])
    assert (changed.created_at, changed.idle_seconds) == (first.created_at, first.idle_seconds)
    later = script.messages("sbx-2", 1, project="p1")
    await running.emit([*script.messages("sbx-3", 1, project="p1"), *later])
    await waits(running, "alerts", 1)
    assert words(await take(running, changed, 1)) == [later[0].data.content]
    assert await subscribe(running, entities=["sbx-2"], update=True) == await subscribe(running, entities=["sbx-2"])
    fresh = await subscribe(running, "fresh", update=True)
    assert fresh.entities == [], "one that does not exist is created"


async def test_a_subscription_begins_at_a_time(running: Any, script: Any) -> None:
    """A start before the stream begins at its first event; one that is now begins at the next sequence."""
    await running.emit(script.messages("sbx-1", 4, project="p1"))
    assert (await subscribe(running, "past", start=datetime.now(UTC) - timedelta(hours=1))).waiting == 4
    assert (await subscribe(running, "next", start=5)).waiting == 0
    await running.emit(script.messages("sbx-1", 1, project="p1"))
    await waits(running, "next", 1)


@pytest.mark.parametrize(
    ("start", "reason"),
    [
        (6, r"start: 6 is in the future: the last sequence of EVENTS is 4"),
        (2**53 - 1, r"start: 9007199254740991 is in the future: the last sequence of EVENTS is 4"),
        (datetime(2199, 1, 1, tzinfo=UTC), r"start: 2199-01-01T00:00:00\+00:00 is in the future: it is 20.* now"),
    ],
)
async def test_a_start_in_the_future_is_refused(running: Any, script: Any, start: Any, reason: str) -> None:
    """A start that would silently omit events creates nothing; it does not matter for an existing subscription."""
    await running.emit(script.messages("sbx-1", 4, project="p1"))
    with pytest.raises(RefusedError) as refused:
        await subscribe(running, start=start)
    assert (refused.value.problem.code, refused.value.problem.field) == (Code.INVALID_FIELD, "start")
    assert re.fullmatch(reason, refused.value.problem.message)
    assert await subscriptions(running) == {}
    made = await subscribe(running, start=5)
    assert (await subscribe(running, start=start)).consumer == made.consumer
    assert (await subscribe(running, start=start, types=["task"], update=True)).consumer == made.consumer


@pytest.mark.parametrize(
    ("types", "field"), [(["agent", "moon"], "types.1"), (["agent."], "types.0"), (["*"], "types.0")]
)
async def test_both_filters_of_types_are_one(running: Any, types: list[str], field: str) -> None:
    """Both requests refuse the same types with the same texts, and both accept a domain in either form."""
    bus = await running.bus(Principal.SUBSCRIBER, project="p1")
    problems = []
    for request in (Subscribe(name="alerts", types=types), ListEvents(types=types)):
        with pytest.raises(RefusedError) as refused:
            await bus.ask(request, "p1")
        problems.append(refused.value.problem)
    assert problems[0] == problems[1]
    assert (problems[0].code, problems[0].field) == (Code.INVALID_FIELD, field)
    for form in ("monitor", "monitor.*"):
        await bus.ask(ListEvents(types=[form]), "p1")
        assert (await bus.ask(Subscribe(name="same", types=[form]), "p1")).types == ["monitor"]


async def test_a_wrong_start_names_the_field_and_nothing_of_its_type(running: Any) -> None:
    """The error names the field as it is in the request, and nothing of its type."""
    bus = await running.bus(Principal.SUBSCRIBER, project="p1")
    subject = request_subject(Subscribe.type, "p1")
    reply = await bus.request(subject, b'{"name": "copy", "start": "yesterday"}')
    assert b'"field":"start"' in reply.replace(b'": ', b'":')
    assert b"a stream sequence, nor a time" in reply


async def test_too_many_filters_are_refused(running: Any) -> None:
    """Too many filters are refused, as the broker checks each event against every filter of all subscriptions."""
    entities = [f"sbx-{number}" for number in range(16)]
    types = [name for name in EVENTS if name.startswith("agent.")][:17]
    with pytest.raises(RefusedError) as refused:
        await subscribe(running, entities=entities, types=types)
    assert refused.value.problem.field == "entities"
