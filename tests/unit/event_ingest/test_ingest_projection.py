"""Events project to the same rows in any order; the rows are valid for Postgres."""

from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from event_ingest.projections import CLOSING, project_events
from event_ingest.read_models import storable
from sandherd.contracts.envelope import Envelope, wrap
from sandherd.contracts.events import EVENTS, EventData
from sandherd.contracts.events.conversation import AgentMessage
from sandherd.contracts.events.message import MessageRejected
from sandherd.contracts.states import ALLOWED, TaskState

BEGUN = datetime(2026, 11, 20, tzinfo=UTC)
MADE_OF: dict[str, dict[str, Any]] = {
    "task.submitted": {
        "task": "t",
        "harness": "command",
        "runtime": "process",
        "priority": "high",
        "depends_on": ["task-0"],
        "deadline": BEGUN,
        "max_attempts": 3,
        "profile": "python",
    },
    "task.assigned": {"sandbox": "sbx-1"},
    "task.running": {"sandbox": "sbx-1"},
    "task.completed": {"sandbox": "sbx-1"},
    "task.failed": {"error": "e", "error_type": "start"},
    "task.cancelled": {"reason": "r"},
    "task.retry_scheduled": {"not_before": BEGUN, "error": "e", "attempt": 2, "sandbox": "sbx-1"},
    "task.timed_out": {"limit_seconds": 1.0},
    "sandbox.requested": {"runtime": "process", "profile": "python", "expires_at": BEGUN},
    "sandbox.spawned": {"runtime": "process", "isolation": "bubblewrap", "warm": True},
    "sandbox.running": {"runtime": "process"},
    "sandbox.paused": {"runtime": "process", "reason": "r"},
    "sandbox.resumed": {"runtime": "process"},
    "sandbox.extended": {"runtime": "process", "expires_at": BEGUN},
    "sandbox.refused": {"command": "spawner.pause_sandbox", "reason": "r"},
    "sandbox.stopping": {"runtime": "process", "reason": "r"},
    "sandbox.terminated": {"runtime": "process", "reason": "r"},
    "sandbox.failed": {"runtime": "process", "error": "e", "error_type": "start"},
    "sandbox.orphan_found": {"runtime": "process"},
}


FIRST, SECOND = "a" * 32, "b" * 32


def _event(event_type: str, sequence: int, life: str = FIRST) -> Envelope[Any]:
    entity = "task-1" if event_type.startswith("task.") else f"sbx-{life[0]}"
    data = MADE_OF[event_type]
    if "expires_at" in data:
        data = data | {"expires_at": BEGUN + timedelta(minutes=sequence)}
    return wrap(
        EVENTS[event_type](**data),
        event_type,
        source=f"/sandherd/spawner/{entity}/{life}",
        sequence=sequence,
        project="default",
        subject=entity,
        time=BEGUN + timedelta(seconds=sequence),
        taskid="task-1",
    )


def _histories() -> st.SearchStrategy[list[Envelope[Any]]]:
    """Events of two tasks with the same name, one after the other."""
    return st.tuples(_lives(FIRST), _lives(SECOND)).map(lambda lives: [*lives[0], *lives[1]])


def _lives(life: str) -> st.SearchStrategy[list[Envelope[Any]]]:
    """Any events, numbered in some order, also in orders that the spawner would not publish."""
    # Submitted and spawned are published once in a life; the other events may come as often as they like.
    often = sorted(MADE_OF.keys() - {"task.submitted", "sandbox.spawned"})
    types = st.lists(st.sampled_from(often), max_size=12).flatmap(
        lambda data: st.permutations([*data, "task.submitted", "sandbox.spawned"])
    )
    return types.map(lambda data: [_event(name, number, life) for number, name in enumerate(data, 1)])


@given(
    _histories().flatmap(
        lambda history: st.tuples(st.just(history), st.permutations(history), st.permutations(history))
    )
)
def test_any_order_and_repetition_projects_alike(histories: tuple[list[Any], list[Any], list[Any]]) -> None:
    """Any order and any repetition of the events of a history result in the same rows."""
    history, shuffled, again = histories
    assert project_events([*shuffled, *again]) == project_events(history)


def test_every_state_is_reached_by_an_event() -> None:
    """Each state of the contracts is set by an event, and each type that closes a source is a type of event."""
    reached = {(type(model.sets_state), model.sets_state) for model in EVENTS.values() if model.sets_state is not None}
    assert reached == {(kind, state) for kind in ALLOWED for state in kind}
    assert set(CLOSING) <= set(EVENTS)


def test_event_without_a_state_changes_none() -> None:
    """An agent's message changes neither its task nor its sandbox."""
    data = AgentMessage(content="done", content_length=4)
    event: Envelope[EventData] = wrap(
        data,
        "agent.message",
        source="/sandherd/sandbox/sbx-1",
        sequence=1,
        project="default",
        subject="sbx-1",
        time=BEGUN,
        taskid="task-1",
        sandboxid="sbx-1",
    )
    silent = ("sandbox.orphan_found", "sandbox.refused", "task.timed_out")
    found = project_events([event, *(_event(name, 9) for name in silent)])
    assert (found.tasks, found.sandboxes, found.messages) == ({}, {}, {})


def test_command_that_is_rejected_at_once_is_no_message() -> None:
    """The name of a message that was rejected at its command stays free for another message."""
    rejected: EventData = MessageRejected(message_id="msg-1", reason="no")
    first, second = (
        wrap(
            rejected,
            rejected.type,
            source=source,
            sequence=number,
            project="default",
            subject="sbx-1",
            time=BEGUN,
        )
        for source, number in (("/sandherd/message-relay/sbx-1/1", 1), ("/sandherd/message-relay/msg-1", 2))
    )
    assert project_events([first]).messages == {}
    assert [row.state for row in project_events([first, second]).messages.values()] == ["rejected"]


def test_retry_makes_a_task_pending() -> None:
    """After a failed attempt the task is pending, with the number of the next attempt and the reason."""
    data = ["task.submitted", "task.assigned", "task.running", "task.retry_scheduled"]
    waiting = project_events(_event(name, number) for number, name in enumerate(data, 1)).tasks["default", "task-1"]
    assert (waiting.state, waiting.attempt, waiting.not_before) == (TaskState.PENDING, 3, BEGUN)
    assert (waiting.error, waiting.retried_sequence, waiting.started_sequence) == ("e", 4, 3)
    data += ["task.assigned"]
    assigned = project_events(_event(name, number) for number, name in enumerate(data, 1)).tasks["default", "task-1"]
    assert (assigned.state, assigned.not_before, assigned.error) == (TaskState.ASSIGNED, None, None)
    assert assigned.sandbox_sequence > assigned.retried_sequence


def test_later_task_of_the_same_name_replaces_the_earlier() -> None:
    """The earlier task is replaced whatever state it had, and events of it that are read later change nothing."""
    earlier = [_event(name, number) for number, name in enumerate(("task.submitted", "task.running"), 1)]
    later = [_event("task.submitted", 1, SECOND)]
    for history in ([*earlier, *later, _event("task.completed", 9)], [*later, *earlier]):
        row = project_events(history).tasks["default", "task-1"]
        assert (row.life, row.state, row.sandbox, row.started_at) == (SECOND, TaskState.PENDING, None, None)


def test_last_extension_counts() -> None:
    """A sandbox may be extended, also before its first event is read; its state is unchanged."""
    history = [_event("sandbox.extended", 5), _event("sandbox.requested", 1), _event("sandbox.extended", 3)]
    row = project_events(history).sandboxes["default", "sbx-a"]
    assert (row.expires_at, row.state, row.profile) == (BEGUN + timedelta(minutes=5), "requested", "python")


@given(st.none() | st.text())
def test_texts_can_be_stored(text: str | None) -> None:
    """A text is changed only in the one character that Postgres can't store."""
    stored = storable(text)
    assert stored is None or "\x00" not in stored
    assert (stored or "").replace("�", "") == (text or "").replace("\x00", "").replace("�", "")
