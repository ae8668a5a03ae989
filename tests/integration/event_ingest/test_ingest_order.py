"""The order and the repetition of stored events do not change the results."""

import asyncio
from datetime import timedelta
from functools import partial
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from event_ingest.ingest import CONSUMER
from sandherd.concurrency import cancel_and_wait
from sandherd.contracts.requests import ListEvents
from sandherd.contracts.subjects import Principal
from tests.patience import PATIENCE
from tests.polling import eventually


def _story(script: Any) -> list[Any]:
    """The events of two tasks, one with two attempts, of messages, and of an agent."""
    retried = {"project": "default", "taskid": "task-2"}
    events = script.life("task-1", "sbx-1")
    events += script.messages("sbx-1", 3)
    events += [script.heartbeat("sbx-1"), script.heartbeat("sbx-1")]
    events += [
        script.spawner(
            "task.submitted",
            "task-2",
            **retried,
            task="t",
            harness="command",
            runtime="process",
            priority="high",
            depends_on=["task-1"],
            deadline=script.clock,
            max_attempts=3,
            profile="python",
        ),
        script.spawner("task.assigned", "task-2", **retried, sandbox="sbx-2"),
        script.spawner("sandbox.requested", "sbx-2", **retried, runtime="process"),
        script.spawner("sandbox.failed", "sbx-2", **retried, runtime="process", error="no", error_type="start"),
        script.spawner(
            "task.retry_scheduled",
            "task-2",
            **retried,
            attempt=1,
            not_before=script.clock,
            error="no",
            error_type="start",
            sandbox="sbx-2",
        ),
        script.spawner("task.assigned", "task-2", **retried, attempt=2, sandbox="sbx-3"),
        script.spawner("task.running", "task-2", **retried, attempt=2, sandbox="sbx-3"),
        script.spawner("task.cancelled", "task-2", **retried, attempt=2, sandbox="sbx-3", reason="enough"),
    ]
    events += _alone(script)
    for life in ("a" * 32, "b" * 32):
        events += _named_again(script, f"/sandherd/spawner/task-3/{life}")
    for name, last in (("message-1", "acknowledged"), ("message-2", "delivered")):
        fields = {"source": f"/sandherd/message-relay/{name}", "message_id": name}
        events.append(script.emit("message.queued", "sbx-1", **fields, content_length=2, sender_id="me"))
        events.append(script.emit("message.delivered", "sbx-1", **fields, delivery_ms=1.5))
        if last == "acknowledged":
            events.append(script.emit("message.acknowledged", "sbx-1", **fields))
    return [*events, script.agent("agent.shutdown", "sbx-1", reason="done", timestamp=script.clock)]


def _named_again(script: Any, source: str) -> list[Any]:
    """One life of a task whose name is used again: it is submitted, and assigned if it is the first."""
    own = {"entity": "task-3", "source": source, "taskid": "task-3"}
    begun = [script.emit("task.submitted", **own, task=source[-1], harness="command", runtime="process")]
    if source.endswith("b"):
        return begun
    return [*begun, script.emit("task.assigned", **own, sandbox="sbx-5"), script.emit("task.cancelled", **own)]


def _alone(script: Any) -> list[Any]:
    """A sandbox without a task: it is paused, resumed, extended twice, and refused a command."""
    own = {"entity": "sbx-4", "sandboxid": "sbx-4", "runtime": "process"}
    later = [script.clock + timedelta(hours=hours) for hours in (1, 2, 3)]
    return [
        script.spawner("sandbox.requested", **own, expires_at=later[0], profile="python", requested_by="me"),
        script.spawner("sandbox.spawned", **own, isolation="bubblewrap", warm=True),
        script.spawner("sandbox.running", **own),
        script.spawner("sandbox.paused", **own, reason="a look"),
        script.spawner("sandbox.extended", **own, expires_at=later[2]),
        script.spawner("sandbox.resumed", **own),
        script.spawner("sandbox.paused", **own, reason="another"),
        script.spawner("sandbox.extended", **own, expires_at=later[1]),
        script.emit(
            "sandbox.refused", "sbx-4", "/sandherd/spawner/sbx-4/1", command="spawner.extend_sandbox", reason="no"
        ),
    ]


async def _store_batches(history: Any, batches: list[list[Any]]) -> Any:
    async with history.database.writing() as connection:
        await connection.execute(
            "delete from events; delete from sources; delete from tasks; delete from sandboxes; delete from messages"
        )
    for batch in batches:
        await history.deliver(batch)
    return await history.tables()


def _cut(events: list[Any], sizes: list[int]) -> list[list[Any]]:
    batches, start = [], 0
    for size in sizes:
        batches.append(events[start : start + size])
        start += size
    return [batch for batch in [*batches, events[start:]] if batch]


def test_any_order_and_repetition_yield_the_same_tables(postgres: str, script: Any, open_history: Any) -> None:
    """Whatever the order, the repetitions and the batches, the read tables equal those of the original order."""
    events = _story(script)
    places = st.permutations(range(len(events)))
    repeated = st.lists(st.integers(0, len(events) - 1), max_size=20)
    with asyncio.Runner() as runner:
        opening = open_history(postgres)
        history = runner.run(opening.__aenter__())
        expected = runner.run(_store_batches(history, [[event] for event in events]))

        @settings(max_examples=60, deadline=None)
        @given(places, repeated, st.lists(st.integers(1, 12), max_size=8), st.randoms(use_true_random=False))
        def check(order: list[int], again: list[int], sizes: list[int], random: Any) -> None:
            delivered_events = [events[place] for place in (*order, *again)]
            random.shuffle(delivered_events)
            assert runner.run(_store_batches(history, _cut(delivered_events, sizes))) == expected

        check()
        runner.run(opening.__aexit__(None, None, None))
    _check_sense(expected)


def _check_sense(tables: Any) -> None:
    """Check that the tables, which are the same in every order, are also right."""
    first, second, third = tables["tasks"]
    assert (third["text"], third["state"], third["sandbox"]) == ("b", "pending", None)
    assert (first["state"], first["sandbox"], first["result"]) == ("completed", "sbx-1", '{"exit_code": 0}')
    assert (second["state"], second["attempt"], second["sandbox"], second["error"]) == (
        "cancelled",
        2,
        "sbx-3",
        "enough",
    )
    assert second["text"] == "t"
    assert [(row["sandbox"], row["state"], row["task"], row["attempt"]) for row in tables["sandboxes"]] == [
        ("sbx-1", "terminated", "task-1", 1),
        ("sbx-2", "failed", "task-2", 1),
        ("sbx-3", None, "task-2", 2),
        ("sbx-4", "paused", None, 1),
        ("sbx-5", None, "task-3", 1),
    ]
    assert (second["priority"], second["depends_on"], second["max_attempts"]) == ("high", '["task-1"]', 3)
    alone = tables["sandboxes"][3]
    assert (alone["profile"], alone["warm"], alone["reason"]) == ("python", True, "another")
    assert alone["expires_at"] - alone["requested_at"] > timedelta(hours=1, minutes=59)
    assert alone["expires_at"] - alone["requested_at"] < timedelta(hours=2, minutes=1)
    assert [row["state"] for row in tables["messages"]] == ["acknowledged", "delivered"]
    voice = next(row for row in tables["sources"] if row["source"] == "/sandherd/sandbox/sbx-1")
    assert (voice["stored"], voice["highest"], voice["closing"], voice["heartbeats"]) == (6, 6, 6, 2)


async def test_messages_of_two_projects_may_have_one_name(history: Any, script: Any) -> None:
    """Neither project changes the state, the recipient or the sender of the other's message, in either order."""
    named: dict[str, Any] = {"source": "/sandherd/message-relay/message-1", "message_id": "message-1"}
    for project, sandbox, sender in (("alpha", "sbx-a", "one"), ("beta", "sbx-b", "two")):
        queued = script.emit("message.queued", sandbox, project=project, content_length=2, sender_id=sender, **named)
        await history.deliver([queued])
    delivered = script.emit("message.delivered", "sbx-b", project="beta", delivery_ms=1.5, **named)
    await history.deliver([delivered])
    rows = (await history.tables())["messages"]
    found = {(row["project"], row["sandbox"], row["sender_id"], row["state"]) for row in rows}
    assert found == {("alpha", "sbx-a", "one", "queued"), ("beta", "sbx-b", "two", "delivered")}


async def test_list_states_through_which_event_the_history_is_complete(world: Any, script: Any) -> None:
    """While another replica has an event that it has not stored, later ones are listed, but not as complete."""
    first, second, third = script.messages("sbx-1", 3)
    await world.emit([first])
    other = await (await world.bus(Principal.EVENT_INGEST)).js.pull_subscribe_bind(CONSUMER, stream="EVENTS")
    [held] = await other.fetch(1, timeout=PATIENCE)
    holding = asyncio.create_task(_hold(held))
    async with world.service().running():
        await world.emit([second, third])
        await world.stored(2)
        page = await world.ask(ListEvents(sandbox="sbx-1"), "default")
        assert [stored.stream_sequence for stored in page.events] == [2, 3]
        assert page.stored_through == 0
        await cancel_and_wait([holding])
        await held.nak()
        await world.stored(3)
        await eventually(partial(_is_complete, world, 3), "the last event is acknowledged")
        one = await world.ask(ListEvents(sandbox="sbx-1", limit=1), "default")
        assert one.stored_through == 3
        assert (await world.ask(ListEvents(sandbox="sbx-1", cursor=one.next_cursor), "default")).stored_through is None


async def _hold(message: Any) -> None:
    """Let the broker wait for the acknowledgement."""
    while True:
        await message.in_progress()
        await asyncio.sleep(1)


async def _is_complete(world: Any, through: int) -> bool:
    page = await world.ask(ListEvents(sandbox="sbx-1", newest_first=True), "default")
    assert page.stored_through is None or page.stored_through <= page.events[0].stream_sequence
    return bool(page.stored_through == through)
