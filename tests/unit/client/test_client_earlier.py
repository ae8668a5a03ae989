"""What an earlier task has left, found in the history: of which attempt, and which of it."""

from datetime import UTC, datetime
from typing import Any

import pytest

from sandherd.client import HerdError
from sandherd.client.resuming import session_of
from sandherd.contracts.envelope import wrap
from sandherd.contracts.errors import Code
from sandherd.contracts.events import ArtifactRef, EventData
from sandherd.contracts.events.access import AgentTranscriptSaved, AgentWorkSaved
from sandherd.contracts.events.agent import AgentCompleted, AgentFailed
from sandherd.contracts.events.lifecycle import TaskAssigned
from sandherd.contracts.requests import AskEvents, EventList, LiveTasks, PastTasks, StoredEvent, TaskList, TaskView
from sandherd.contracts.states import TaskState

LONG_AGO = datetime(2026, 11, 20, tzinfo=UTC)


def artifact(name: str) -> ArtifactRef:
    return ArtifactRef(artifact=name, subject=f"s.{name}", size=1, sha256="0" * 64, chunks=1)


def saved(session: str | None, name: str) -> AgentTranscriptSaved:
    return AgentTranscriptSaved(session_id=session, artifact=artifact(name))


class History:
    """Answers what the client asks: the task from the spawner, and events, the newest first, from event-ingest."""

    def __init__(self, harness: str = "claude", state: TaskState = TaskState.FAILED, at: datetime = LONG_AGO) -> None:
        ended = at if state in {TaskState.FAILED, TaskState.COMPLETED} else None
        self.view = TaskView(
            project="p1", task="task-1", state=state, harness=harness, sandbox="sbx-2", submitted_at=at, ended_at=ended
        )
        self.said: list[tuple[str, EventData]] = []
        self.late: list[tuple[str, EventData]] = []
        """What is stored only once it was looked for."""

    def says(self, entity: str, *said: EventData) -> "History":
        self.said += [(entity, one) for one in said]
        return self

    def attempts(self, *numbers: int) -> "History":
        return self.says("task-1", *(TaskAssigned(attempt=number, sandbox=f"sbx-{number}") for number in numbers))

    async def ask(self, request: Any, *, timeout: float = 5.0) -> Any:
        if isinstance(request, LiveTasks | PastTasks):
            return TaskList(tasks=[self.view])
        assert isinstance(request, AskEvents)
        found = [one for entity, one in self.said if entity == request.entity and one.type in request.types]
        if self.late and request.entity == "sbx-2":
            self.said.append(self.late.pop(0))
        return EventList(events=[_stored(number, one) for number, one in reversed(list(enumerate(found, 1)))])


def _stored(number: int, data: EventData) -> StoredEvent:
    event = wrap(
        data, data.type, source="/sandherd/x", sequence=number, project="p1", subject="x", time=LONG_AGO,
    )  # fmt: skip
    return StoredEvent(stream_sequence=number, envelope=event.model_dump(mode="json", exclude_none=True))


async def found(history: History, **wanted: Any) -> Any:
    return await session_of(history.ask, "task-1", **{"attempt": None, "fork": False, "work": True, **wanted})


async def test_the_last_attempt_that_has_left_a_session_is_meant() -> None:
    """With what that attempt has left last, and nothing of one that has left none; or the attempt that is named."""
    history = History().attempts(1, 2, 3)
    history.says("sbx-1", saved("s-1", "one"), AgentWorkSaved(artifact=artifact("tree-1")))
    history.says(
        "sbx-2", saved("s-2", "old"), saved(None, "shown"), saved("s-2", "new"), AgentWorkSaved(left_out="big")
    )
    history.says("sbx-3", AgentWorkSaved(artifact=artifact("tree-3")), saved(None, "shown"))
    last = await found(history)
    assert (last.attempt, last.sandbox, last.session_id, last.fork) == (2, "sbx-2", "s-2", False)
    assert (last.transcript.artifact, last.work) == ("new", None)
    first = await found(history, attempt=1, fork=True)
    assert (first.session_id, first.work.artifact, first.fork) == ("s-1", "tree-1", True)
    assert (await found(history, attempt=1, work=False)).work is None
    for attempt in (3, 4):
        with pytest.raises(HerdError, match=f"attempt {attempt} of task-1 has left no session") as caught:
            await found(history, attempt=attempt)
        assert caught.value.problem.code is Code.NOT_FOUND


async def test_an_agent_that_keeps_its_session_itself_has_told_its_name() -> None:
    """With its end, well or not; of a kind that needs a file that alone is no session."""
    for end in (AgentCompleted(session_id="s-1"), AgentFailed(session_id="s-1", error="no", error_type="internal")):
        history = History(harness="acp").attempts(2).says("sbx-2", end)
        assert (await found(history)).session_id == "s-1"
        with pytest.raises(HerdError, match="task-1 has left no session"):
            await found(History().attempts(2).says("sbx-2", end))


async def test_what_a_task_has_said_just_now_is_waited_for() -> None:
    """One that ended a moment ago may have left more than the history has yet."""
    history = History(state=TaskState.COMPLETED, at=datetime.now(UTC)).attempts(2).says("sbx-2", saved("s-1", "old"))
    history.late = [("sbx-2", saved("s-1", "new")), ("sbx-2", AgentCompleted(session_id="s-1"))]
    assert (await found(history)).transcript.artifact == "new"


async def test_a_task_at_work_is_only_forked() -> None:
    """And begins with what it had put by at the end of its last turn."""
    history = History(state=TaskState.RUNNING).attempts(2).says("sbx-2", saved("s-1", "turn"))
    with pytest.raises(HerdError, match="is running") as caught:
        await found(history)
    assert caught.value.problem.code is Code.CONFLICT
    assert (await found(history, fork=True)).transcript.artifact == "turn"
