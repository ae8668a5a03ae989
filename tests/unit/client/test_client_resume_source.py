"""The session and work tree of an earlier task, found in the history by attempt."""

import io
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from sandherd.client import HerdError
from sandherd.client.herd import Herd
from sandherd.client.tasks.resume import session_of
from sandherd.contracts.envelope import wrap
from sandherd.contracts.errors import Code
from sandherd.contracts.events import ArtifactRef, EventData
from sandherd.contracts.events.access import AgentTranscriptSaved, AgentWorkSaved
from sandherd.contracts.events.agent import AgentCompleted, AgentFailed
from sandherd.contracts.events.task import TaskAssigned, TaskSubmitted
from sandherd.contracts.requests import (
    DownloadChunk,
    EventList,
    ListEvents,
    ListLiveTasks,
    ListPastTasks,
    StoredEvent,
    TaskList,
    TaskView,
)
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
        self.published: list[tuple[str, EventData]] = []
        self.late: list[tuple[str, EventData]] = []
        """What is stored only once it was looked for."""

    def publish(self, entity: str, *published_events: EventData) -> "History":
        self.published += [(entity, one) for one in published_events]
        return self

    def attempts(self, *numbers: int) -> "History":
        return self.publish("task-1", *(TaskAssigned(attempt=number, sandbox=f"sbx-{number}") for number in numbers))

    async def request(self, request: Any, *, timeout: float = 5.0) -> Any:
        if isinstance(request, ListLiveTasks | ListPastTasks):
            return TaskList(tasks=[self.view])
        assert isinstance(request, ListEvents)
        found = [one for entity, one in self.published if entity == request.entity and one.type in request.types]
        if self.late and request.entity == "sbx-2":
            self.published.append(self.late.pop(0))
        return EventList(events=[_stored(number, one) for number, one in reversed(list(enumerate(found, 1)))])


def _stored(number: int, data: EventData) -> StoredEvent:
    event = wrap(
        data, data.type, source="/sandherd/x", sequence=number, project="p1", subject="x", time=LONG_AGO,
    )  # fmt: skip
    return StoredEvent(stream_sequence=number, envelope=event.model_dump(mode="json", exclude_none=True))


async def found(history: History, **wanted: Any) -> Any:
    return await session_of(history.request, "task-1", **{"attempt": None, "fork": False, "work": True, **wanted})


async def test_last_attempt_with_a_session_is_resumed() -> None:
    """The latest artifacts of that attempt are used, or those of the named attempt, and no other's."""
    history = History().attempts(1, 2, 3)
    history.publish("sbx-1", saved("s-1", "one"), AgentWorkSaved(artifact=artifact("tree-1")))
    history.publish(
        "sbx-2", saved("s-2", "old"), saved(None, "shown"), saved("s-2", "new"), AgentWorkSaved(left_out="big")
    )
    history.publish("sbx-3", AgentWorkSaved(artifact=artifact("tree-3")), saved(None, "shown"))
    last = await found(history)
    assert (last.attempt, last.sandbox, last.session_id, last.fork) == (2, "sbx-2", "s-2", False)
    assert (last.transcript.artifact, last.work) == ("new", None)
    first = await found(history, attempt=1, fork=True)
    assert (first.session_id, first.work.artifact, first.fork) == ("s-1", "tree-1", True)
    assert (await found(history, attempt=1, work=False)).work is None
    for attempt in (3, 4):
        with pytest.raises(HerdError, match=f"attempt {attempt} of task-1 has no stored session") as caught:
            await found(history, attempt=attempt)
        assert caught.value.problem.code is Code.NOT_FOUND


async def test_session_of_self_storing_agent_is_its_last_id() -> None:
    """The agent's end, failed or not, has the id; an agent that needs a file has no session with that alone."""
    for end in (AgentCompleted(session_id="s-1"), AgentFailed(session_id="s-1", error="no", error_type="internal")):
        history = History(harness="acp").attempts(2).publish("sbx-2", end)
        assert (await found(history)).session_id == "s-1"
        with pytest.raises(HerdError, match="task-1 has no stored session"):
            await found(History().attempts(2).publish("sbx-2", end))


async def test_recent_end_of_task_waits_for_late_events() -> None:
    """A task that ended a moment ago may have more events than the history has yet."""
    history = History(state=TaskState.COMPLETED, at=datetime.now(UTC)).attempts(2).publish("sbx-2", saved("s-1", "old"))
    history.late = [("sbx-2", saved("s-1", "new")), ("sbx-2", AgentCompleted(session_id="s-1"))]
    assert (await found(history)).transcript.artifact == "new"


async def test_running_task_is_only_forked() -> None:
    """The fork begins with what was stored at the end of its last turn."""
    history = History(state=TaskState.RUNNING).attempts(2).publish("sbx-2", saved("s-1", "turn"))
    with pytest.raises(HerdError, match="is running") as caught:
        await found(history)
    assert caught.value.problem.code is Code.CONFLICT
    assert (await found(history, fork=True)).transcript.artifact == "turn"


class Deleted(History):
    """The replies about a task whose record and stored files the spawner has deleted."""

    async def request(self, request: Any, *, timeout: float = 5.0) -> Any:
        if isinstance(request, DownloadChunk):
            raise HerdError.of(Code.NOT_FOUND, f"{request.artifact} has no chunk after 0")
        return await super().request(request, timeout=timeout)


async def test_deleted_start_of_a_task_is_named() -> None:
    """The error states what is no longer stored, why, and what still works."""
    submitted = TaskSubmitted(task="x", harness="command", runtime="process", work=artifact("upl-1"))
    link: Any = SimpleNamespace(connection=Deleted().publish("task-1", submitted))
    with pytest.raises(HerdError, match="are no longer stored") as caught:
        await Herd.fetch_start(link, "task-1", io.BytesIO())
    assert caught.value.problem.code is Code.NOT_FOUND
    assert "sandherd cp -r task-1:. DST" in str(caught.value.problem.remedy)
