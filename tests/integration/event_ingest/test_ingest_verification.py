"""`verification` compares the read tables with what the events result in, and lists the differences."""

from typing import Any

import asyncpg
import pytest

from event_ingest.queries.verification import verify_tables
from sandherd.contracts.errors import Code, ContractError
from sandherd.contracts.requests import Verification, VerifyHistory


async def _verified(history: Any, project: str = "default", **wanted: Any) -> Verification:
    async with history.database.reading(heavy=True) as connection:
        return await verify_tables(connection, VerifyHistory(**wanted), project, 1_000_000)


async def _changed(history: Any, *statements: str) -> None:
    connection = await asyncpg.connect(history.url)
    try:
        for statement in statements:
            await connection.execute(statement)
    finally:
        await connection.close()


def _happened(script: Any) -> list[Any]:
    queued = script.emit(
        "message.queued", "sbx-1", "/sandherd/message-relay/sbx-1/m-1", message_id="m-1", message_type="user_message",
        content_length=4,
    )  # fmt: skip
    requested = script.asking("sbx-1", "a-1", expires_at=script.clock, on_timeout="deny")
    others = script.life("task-2", "sbx-2", project="other")
    return [*script.life("task-1", "sbx-1"), queued, *requested, *script.messages("sbx-1", 3), *others]


async def test_tables_of_events_in_any_order_have_no_difference(history: Any, script: Any) -> None:
    """After events were stored backwards, in several batches, no page of any length has a difference."""
    events = _happened(script)[::-1]
    await history.deliver(events[:7])
    await history.deliver(events[7:])
    whole = await _verified(history, "fleet")
    assert (whole.entities, whole.incomplete, whole.differences) == (4, 0, [])
    assert (await _verified(history)).entities == 2
    assert (await _verified(history, sandbox="sbx-1")).entities == 2
    first = await _verified(history, limit=1)
    second = await _verified(history, limit=1, cursor=first.next_cursor)
    assert (first.entities, second.entities, second.next_cursor) == (1, 1, None)
    with pytest.raises(ContractError) as refused:
        await _verified(history, sandbox="sbx-2")
    assert refused.value.problem.code is Code.NOT_FOUND


async def test_each_difference_is_listed(history: Any, script: Any) -> None:
    """A changed value, a missing row, a row without events, and wrong numbers of a source are listed."""
    await history.deliver(_happened(script))
    await _changed(
        history,
        "update tasks set state = 'running' where task = 'task-1'",
        "delete from approvals",
        "insert into messages (project, message, sandbox, state, state_sequence, state_at, message_type) "
        "values ('default', 'm-2', 'sbx-3', 'queued', 1, now(), 'user_message')",
        "update sources set sequence_sum = 7 where source = '/sandherd/sandbox/sbx-1'",
    )
    found = await _verified(history)
    listed = {(one.table, one.name, one.field, one.stored, one.by_events) for one in found.differences}
    assert listed == {
        ("sources", "/sandherd/sandbox/sbx-1 sbx-1", "sequence_sum", "7", "10"),
        ("tasks", "task-1", "state", "running", "completed"),
        ("approvals", "sbx-1 a-1", "", None, "a row"),
        ("messages", "m-2", "", "a row", None),
    }
    assert found.difference_count == len(listed)


async def test_states_of_events_that_are_no_longer_stored_are_not_compared(history: Any, script: Any) -> None:
    """States whose days were dropped are counted and are no difference, as are totals; others are compared."""
    await history.deliver(_happened(script))
    await _changed(history, "delete from events where entity = 'task-1'", "update sandboxes set state = 'running'")
    found = await _verified(history)
    assert found.incomplete == 1
    assert [(one.table, one.name, one.field) for one in found.differences] == [("sandboxes", "sbx-1", "state")]
