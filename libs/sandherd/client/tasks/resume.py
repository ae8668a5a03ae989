"""Finds the stored session of an earlier task in the history. The spawner may have deleted the task's record."""

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, get_args

from pydantic import BaseModel, ConfigDict

from sandherd.client import queries
from sandherd.client.errors import HerdError, validated
from sandherd.client.events import decoder
from sandherd.client.queries import SendRequest
from sandherd.contracts.errors import Code
from sandherd.contracts.events import ArtifactRef
from sandherd.contracts.events.access import AgentTranscriptSaved, AgentWorkSaved
from sandherd.contracts.events.agent import AgentCompleted, AgentFailed
from sandherd.contracts.events.task import TaskAssigned, TaskSubmitted
from sandherd.contracts.model import Attempt
from sandherd.contracts.names import SafeName
from sandherd.contracts.requests import ListEvents, TaskView
from sandherd.contracts.resume import STORES_OWN_SESSIONS, Resume
from sandherd.contracts.specs import TaskSpec
from sandherd.contracts.states import TASK_ENDED

_HISTORY_DELAY: Final = timedelta(seconds=10)
"""Time after the end of a task in which the history may not have its last events yet."""
_POLL_SECONDS: Final = 0.2
_MAX_EVENTS: Final = 100
_RESUMABLE_HARNESSES: Final = get_args(Resume.model_fields["harness"].annotation)
_RESULT_TYPES: Final = tuple(
    event.type for event in (AgentTranscriptSaved, AgentWorkSaved, AgentCompleted, AgentFailed)
)


class ResumeSource(BaseModel):
    """The session to resume: the stored session of an attempt of an earlier task.

    Without `attempt`, it is the session of the last attempt that stored one.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    task: SafeName
    attempt: Attempt | None = None
    fork: bool = False
    """Whether to continue in a copy of the session, so that the original session is not changed."""
    work: bool = True
    """Whether to begin with the work tree that the attempt stored."""


async def resuming_spec(send: SendRequest, spec: TaskSpec, source: ResumeSource | None) -> TaskSpec:
    """The task spec with the session to resume; unchanged without `source`.

    Raises `HerdError`, also if the task's harness can't resume a session.
    """
    if source is None:
        return spec
    return validated(TaskSpec, **{**dict(spec), "resume": await session_of(send, **dict(source))})


async def session_of(send: SendRequest, task: str, *, attempt: int | None, fork: bool, work: bool) -> Resume:
    """The session of an attempt, by default of the last attempt that has stored a session. Raises `HerdError`."""
    view = await queries.task(send, task)
    _check_resumable(view, fork=fork)
    await _wait_for_history(send, view)
    for assigned in await _attempts(send, task, attempt):
        stored_results = await _stored_results(send, assigned.sandbox)
        if "transcript" in stored_results or (view.harness == STORES_OWN_SESSIONS and "session_id" in stored_results):
            results = {name: value for name, value in stored_results.items() if work or name != "work"}
            origin = {"task": task, "attempt": assigned.attempt, "sandbox": assigned.sandbox, "harness": view.harness}
            return validated(Resume, **origin, **results, fork=fork)
    attempt_text = task if attempt is None else f"attempt {attempt} of {task}"
    raise HerdError.of(
        Code.NOT_FOUND,
        f"{attempt_text} has no stored session",
        field="resume",
        remedy="name another one, or start without --resume",
    )


async def stored_work(send: SendRequest, task: str) -> tuple[str, ArtifactRef]:
    """The sandbox and the archive of the last attempt that has stored its work tree. Raises `HerdError`."""
    view = await queries.task(send, task)
    await _wait_for_history(send, view)
    for assigned in await _attempts(send, task, None):
        stored_results = await _stored_results(send, assigned.sandbox)
        if "work" in stored_results:
            return assigned.sandbox, stored_results["work"]
    raise HerdError.of(
        Code.NOT_FOUND,
        f"{task} has no stored work tree",
        field="task",
        remedy="it is stored if the task was submitted with --dir or --keep-work, or failed, and if it has files",
    )


async def submitted_work(send: SendRequest, task: str) -> ArtifactRef | None:
    """The archive of the files that a task began with. None if it began without files. Raises `HerdError`."""
    events = await _events(send, entity=task, types=[TaskSubmitted.type])
    return next((event.work for event in events if isinstance(event, TaskSubmitted)), None)


def _check_resumable(view: TaskView, *, fork: bool) -> None:
    """Raise `HerdError` if the task's harness or state prevents a resume. The spawner checks both again."""
    if view.harness not in _RESUMABLE_HARNESSES:
        text = f"{view.task} uses the harness {view.harness}, which has no session"
        raise HerdError.of(
            Code.INVALID_FIELD, text, field="resume", remedy=f"name a task of {', '.join(_RESUMABLE_HARNESSES)}"
        )
    if not fork and view.state not in TASK_ENDED:
        text = f"{view.task} is {view.state}: its session can't continue in two places"
        raise HerdError.of(Code.CONFLICT, text, field="resume", remedy="fork it (--fork), or wait until it has ended")


async def _wait_for_history(send: SendRequest, view: TaskView) -> None:
    """For a task that has just ended, wait until the history has the end of its last attempt."""
    if view.sandbox is None or view.ended_at is None:
        return
    while datetime.now(UTC) - view.ended_at < _HISTORY_DELAY:
        if await _events(send, entity=view.sandbox, types=[AgentCompleted.type, AgentFailed.type]):
            return
        await asyncio.sleep(_POLL_SECONDS)


async def _attempts(send: SendRequest, task: str, attempt: int | None) -> list[TaskAssigned]:
    """The attempts that had a sandbox, the last one first. If `attempt` is given, only this one."""
    events = await _events(send, entity=task, types=[TaskAssigned.type])
    return [event for event in events if isinstance(event, TaskAssigned) and attempt in {None, event.attempt}]


async def _stored_results(send: SendRequest, sandbox: str) -> dict[str, Any]:
    """The last stored session and work tree of an attempt, as fields of `Resume`.

    If the agent stores its session itself, there is only its `session_id`.
    """
    results: dict[str, Any] = {}
    for event in reversed(await _events(send, entity=sandbox, types=_RESULT_TYPES)):
        match event:
            case AgentTranscriptSaved(session_id=str(session), artifact=artifact):
                results |= {"session_id": session, "transcript": artifact}
            case AgentWorkSaved(artifact=artifact) if artifact is not None:
                results["work"] = artifact
            case AgentCompleted(session_id=str(session)) | AgentFailed(session_id=str(session)):
                results.setdefault("session_id", session)
            case _:
                pass
    return results


async def _events(send: SendRequest, *, entity: str, types: Sequence[str]) -> list[Any]:
    """The events of these types, newest first."""
    request = validated(ListEvents, entity=entity, types=list(types), newest_first=True, limit=_MAX_EVENTS)
    return [decoder.from_history(stored).data for stored in (await send(request)).events]
