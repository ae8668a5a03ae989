"""The audit finds events that were never published, and those that are not of their source."""

import asyncio
from typing import Any

from sandherd.contracts.requests import GetAudit

OF_AGENTS = {"/sandherd/sandbox/sbx-first", "/sandherd/sandbox/sbx-second"}


async def settled(running: Any, count: int, **requested: Any) -> Any:
    """An audit once this number of events is stored, and none is in transit."""
    await running.stored(count)
    while True:
        audit = await running.ask(GetAudit(**requested))
        if audit.unstored == 0:
            return audit
        await asyncio.sleep(0.01)


def ended(script: Any, task: str, sandbox: str, *, unsaid: bool = False) -> list[Any]:
    """The events of a sandbox's life; the spawner states whether something was not published."""
    *events, last = script.life(task, sandbox)
    return [*events, last.model_copy(update={"data": last.data.model_copy(update={"unsaid": unsaid})})]


def last_word(script: Any, sandbox: str) -> Any:
    return script.agent("agent.shutdown", sandbox, reason="done", timestamp=script.clock)


async def test_sandbox_without_a_shutdown_event_is_reported(running: Any, script: Any) -> None:
    """A sandbox whose agent failed, or whose events did not arrive, is reported; a recovery completes it."""
    events = [
        *ended(script, "task-1", "sbx-whole"),
        *script.messages("sbx-whole", 2),
        last_word(script, "sbx-whole"),
        *ended(script, "task-2", "sbx-broken-off"),
        *script.messages("sbx-broken-off", 2),
        *ended(script, "task-3", "sbx-silent", unsaid=True),
        *ended(script, "task-4", "sbx-never-spoke"),
        *script.life("task-5", "sbx-lives")[:-1],
        *script.messages("sbx-lives", 1),
    ]
    await running.emit(events)
    audit = await settled(running, len(events))
    assert (audit.missing, audit.unsaid, audit.unsaid_sandboxes) == (0, 2, ["sbx-broken-off", "sbx-silent"])
    alone = await settled(running, len(events), sandbox="sbx-silent")
    assert alone.unsaid_sandboxes == ["sbx-silent"]
    rest = [last_word(script, "sbx-broken-off"), *script.messages("sbx-silent", 1), last_word(script, "sbx-silent")]
    await running.emit(rest)
    assert (await settled(running, len(events) + len(rest))).unsaid == 0


async def test_number_used_twice_is_a_conflict(running: Any, script: Any) -> None:
    """Both events with one number are stored, and the audit counts one as foreign; other sources are unaffected."""
    published_messages = script.messages("sbx-1", 4)
    forged = script.messages("sbx-1", 1)[0].model_copy(update={"sequence": 2})
    await running.emit([*published_messages, forged, *script.messages("sbx-2", 3)])
    audit = await settled(running, 8)
    assert (audit.missing, audit.conflicts) == (0, 1)
    assert [(source.sandbox, source.conflicts) for source in audit.sources] == [("sbx-1", 1)]


async def test_forged_sequence_does_not_hide_missing_events(running: Any, script: Any) -> None:
    """A gap that a forged number opens is reported separately, with the number that the source claims."""
    forged = script.messages("sbx-1", 2)[1].model_copy(update={"sequence": 2**31 - 1})
    lossy = script.messages("sbx-2", 5)
    await running.emit([forged, *lossy[:2], *lossy[3:]])
    audit = await settled(running, 5)
    assert (audit.missing, audit.implausible, audit.conflicts) == (1, 1, 0)
    assert {source.sandbox: source.missing for source in audit.sources} == {"sbx-1": 2**31 - 2, "sbx-2": 1}


async def test_audit_of_a_task_includes_each_of_its_sandboxes(running: Any, script: Any) -> None:
    """The audit of a task includes missing events of an earlier attempt's sandbox, and none of another task's."""
    *first, _, _ = script.life("task-1", "sbx-first")
    lost, second = script.messages("sbx-first", 3), script.messages("sbx-second", 2)
    retried = [event for event in script.life("task-1", "sbx-second") if event.subject == "sbx-second"]
    others = [*script.life("task-2", "sbx-other"), *script.messages("sbx-other", 2)[1:]]
    published = [*first, lost[0], lost[2], *retried, *second, *others]
    await running.emit(published)
    audit = await settled(running, len(published), sandbox="task-1")
    assert {source.sandbox: source.missing for source in audit.sources if source.source in OF_AGENTS} == {
        "sbx-first": 1,
        "sbx-second": 0,
    }
    assert (audit.missing, audit.unsaid_sandboxes) == (1, ["sbx-second"])
    assert (await settled(running, len(published), sandbox="sbx-second")).missing == 0


async def test_monitor_is_no_source_of_a_sandbox(running: Any, script: Any) -> None:
    """The monitor publishes about all sandboxes and does not end with one, so it is no source of a sandbox's audit."""
    monitor = "/sandherd/monitor/01a1fb38-8ace-7289-a0cc-875f19248904"
    found = {"rule": "idle", "age_seconds": 700, "limit_seconds": 600, "sandboxid": "sbx-1"}
    published = [*script.messages("sbx-1", 2), script.emit("monitor.idle_found", "sbx-1", monitor, **found)]
    await running.emit(published)
    audit = await settled(running, len(published), sandbox="sbx-1")
    assert [source.source for source in audit.sources] == ["/sandherd/sandbox/sbx-1"]
    assert (await settled(running, len(published))).source_count == 2
