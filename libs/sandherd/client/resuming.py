"""What an earlier task has left to go on from, as the history has it: the spawner may have forgotten it by now."""

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, get_args

from pydantic import BaseModel, ConfigDict

from sandherd.client import heard, questions
from sandherd.client.errors import HerdError, made
from sandherd.client.questions import Ask
from sandherd.contracts.errors import Code
from sandherd.contracts.events.access import AgentTranscriptSaved, AgentWorkSaved
from sandherd.contracts.events.agent import AgentCompleted, AgentFailed
from sandherd.contracts.events.lifecycle import TaskAssigned
from sandherd.contracts.names import SafeName
from sandherd.contracts.quantities import Attempt
from sandherd.contracts.requests import AskEvents, TaskView
from sandherd.contracts.resume import KEEPS_ITSELF, Resume
from sandherd.contracts.specs import TaskSpec
from sandherd.contracts.states import TASK_ENDED

_LATELY: Final = timedelta(seconds=10)
"""So long after its end the last that a task has left may not be in the history yet."""
_LOOK: Final = 0.2
_MOST: Final = 100
_KINDS: Final = get_args(Resume.model_fields["harness"].annotation)
_LEFT: Final = tuple(one.type for one in (AgentTranscriptSaved, AgentWorkSaved, AgentCompleted, AgentFailed))


class Earlier(BaseModel):
    """What of an earlier task is wanted: what `session_of` is asked for."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    task: SafeName
    attempt: Attempt | None = None
    fork: bool = False
    work: bool = True


async def going_on(ask: Ask, spec: TaskSpec, earlier: Earlier | None) -> TaskSpec:
    """The task with what it goes on from. Raises `HerdError`, also where its harness can't."""
    if earlier is None:
        return spec
    return made(TaskSpec, **{**dict(spec), "resume": await session_of(ask, **dict(earlier))})


async def session_of(ask: Ask, task: str, *, attempt: int | None, fork: bool, work: bool) -> Resume:
    """The session of an attempt: the last one that has left any, if none is named. Raises `HerdError`."""
    view = await questions.task(ask, task)
    _check(view, fork=fork)
    await _heard_out(ask, view)
    for assigned in await _attempts(ask, task, attempt):
        found = await _left(ask, assigned.sandbox)
        if "transcript" in found or (view.harness == KEEPS_ITSELF and "session_id" in found):
            taken = {name: value for name, value in found.items() if work or name != "work"}
            known = {"task": task, "attempt": assigned.attempt, "sandbox": assigned.sandbox, "harness": view.harness}
            return made(Resume, **known, **taken, fork=fork)
    which = task if attempt is None else f"attempt {attempt} of {task}"
    raise HerdError.of(
        Code.NOT_FOUND, f"{which} has left no session", field="resume", remedy="name another one, or begin anew"
    )


def _check(view: TaskView, *, fork: bool) -> None:
    """Raises `HerdError` if what the task is rules it out. The spawner judges it as well, when it is asked."""
    if view.harness not in _KINDS:
        text = f"{view.task} is done by a {view.harness}, which has no session"
        raise HerdError.of(Code.INVALID_FIELD, text, field="resume", remedy=f"name a task of {', '.join(_KINDS)}")
    if not fork and view.state not in TASK_ENDED:
        text = f"{view.task} is {view.state}: its session can't go on in two places"
        raise HerdError.of(Code.CONFLICT, text, field="resume", remedy="fork it (--fork), or wait until it has ended")


async def _heard_out(ask: Ask, view: TaskView) -> None:
    """Wait, for a task that has only just ended, until the history has the end of its last attempt."""
    if view.sandbox is None or view.ended_at is None:
        return
    while datetime.now(UTC) - view.ended_at < _LATELY:
        if await _events(ask, entity=view.sandbox, types=[AgentCompleted.type, AgentFailed.type]):
            return
        await asyncio.sleep(_LOOK)


async def _attempts(ask: Ask, task: str, attempt: int | None) -> list[TaskAssigned]:
    """The attempts that had a sandbox, the last one first; only this one, if it is named."""
    begun = await _events(ask, entity=task, types=[TaskAssigned.type])
    return [one for one in begun if isinstance(one, TaskAssigned) and attempt in {None, one.attempt}]


async def _left(ask: Ask, sandbox: str) -> dict[str, Any]:
    """What an attempt has put by last: its session, and its work tree. An agent may keep its session itself."""
    found: dict[str, Any] = {}
    for event in reversed(await _events(ask, entity=sandbox, types=_LEFT)):
        match event:
            case AgentTranscriptSaved(session_id=str(session), artifact=artifact):
                found |= {"session_id": session, "transcript": artifact}
            case AgentWorkSaved(artifact=artifact) if artifact is not None:
                found["work"] = artifact
            case AgentCompleted(session_id=str(session)) | AgentFailed(session_id=str(session)):
                found.setdefault("session_id", session)
            case _:
                pass
    return found


async def _events(ask: Ask, *, entity: str, types: Sequence[str]) -> list[Any]:
    """What was said of these types, the newest first."""
    question = made(AskEvents, entity=entity, types=list(types), newest_first=True, limit=_MOST)
    return [heard.kept(stored).data for stored in (await ask(question)).events]
