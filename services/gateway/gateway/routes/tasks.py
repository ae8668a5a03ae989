"""Routes about tasks: list, show, submit, cancel, retry."""

from typing import Annotated, Any, Final

from fastapi import APIRouter, Query, Request
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, ConfigDict, Field

from gateway.request_models import body_of, part_of
from gateway.routes.route_replies import Accepted, MatchHeader, Name, accepted_response, check_match, response_with_tag
from gateway.sessions import ReadSession, WorkSession
from sandherd.client import queries
from sandherd.client.errors import HerdError, validated
from sandherd.contracts.commands import CancelTask, RetryTask, TaskSpec
from sandherd.contracts.errors import Code
from sandherd.contracts.names import SafeName
from sandherd.contracts.requests import (
    Catalogue,
    GetSubmittedTask,
    ListRuntimes,
    Profile,
    SubmittedTask,
    TaskList,
    TaskView,
)
from sandherd.contracts.requests.live_state import TaskFilter
from sandherd.contracts.states import TASK_ENDED, TaskState

router: Final = APIRouter(tags=["tasks"])
_LABEL_PATTERN: Final = r"^[^=]+=.*$"
_FIELDS_OF_PATH_AND_CALLER: Final = frozenset({"task", "cancelled_by", "requested_by", "sealed"})
TaskQuery: Any = part_of(
    TaskFilter,
    "TaskQuery",
    without=frozenset({"task", "labels"}),
    label=(list[Annotated[str, Field(pattern=_LABEL_PATTERN)]], Field(default_factory=list, max_length=16)),
    past=(bool, False),
)


class TaskBody(TaskSpec):
    """A task: what to do, by which agent, in which sandbox. It is the contract `TaskSpec`."""

    model_config = ConfigDict(defer_build=False)  # FastAPI builds the validator of a deferred model with a warning


CancelBody: Any = body_of(CancelTask, "CancelBody", without=_FIELDS_OF_PATH_AND_CALLER)


@router.get("/tasks")
async def list_tasks(session: ReadSession, query: Annotated[TaskQuery, Query()]) -> TaskList:
    """Tasks, newest first: current ones, or those of the history with `past`."""
    filters: dict[str, Any] = query.model_dump(exclude={"label"}, exclude_unset=True)
    if query.label:
        filters["labels"] = dict(text.split("=", 1) for text in query.label)
    page = await session.herd.tasks(**filters)
    return TaskList(tasks=page.items, next_cursor=page.next_cursor)


@router.post("/tasks", status_code=202, response_model=Accepted)
async def submit_task(session: WorkSession, spec: TaskBody, name: SafeName | None = None) -> JSONResponse:
    """Submit a task. Requests with the same name, or `Idempotency-Key`, submit one task."""
    task = await session.herd.submit(spec, task=name or session.name("task"), by=session.caller.name)
    return accepted_response(task, f"/tasks/{task}")


@router.get("/catalogue", tags=["operation"])
async def catalogue(session: ReadSession) -> Catalogue:
    """What tasks can use in this herd: runtimes, profiles, harnesses, limits."""
    listed = await session.herd.connection.request(ListRuntimes())
    profiles = {name: _public_profile(profile) for name, profile in listed.profiles.items()}
    return listed.model_copy(update={"profiles": profiles})


@router.get("/tasks/{task}", response_model=TaskView)
async def get_task(request: Request, session: ReadSession, task: Name) -> Response:
    """A task in its current or final state, with an `ETag` for `If-None-Match`, and for `If-Match` of commands."""
    return response_with_tag(request, await session.herd.task(task))


@router.get("/tasks/{task}/submitted", response_model_exclude_defaults=True)
async def submitted_task(session: WorkSession, task: Name) -> SubmittedTask:
    """The submitted specification of a task, to submit it again. It is stored for some time after the task has ended.

    It has no values of secrets: variables with secret values are empty, and so are files that contain such a value or
    are not stored any more.
    """
    return await session.herd.connection.request(GetSubmittedTask(task=task))


@router.post("/tasks/{task}/cancel", status_code=202, response_model=Accepted)
async def cancel_task(
    session: WorkSession, task: Name, body: CancelBody | None = None, if_match: MatchHeader = None
) -> JSONResponse:
    """Cancel a task that has not ended."""
    check_match(if_match, await session.herd.task(task))
    await session.herd.cancel(task, reason=_reason(body), by=session.caller.name)
    return accepted_response(task, f"/tasks/{task}")


@router.post("/tasks/{task}/retry", status_code=202, response_model=Accepted)
async def retry_task(session: WorkSession, task: Name, if_match: MatchHeader = None) -> JSONResponse:
    """Retry a task that has failed or was cancelled."""
    view = await queries.task(session.herd.connection.request, task)
    check_match(if_match, view)
    if view.state not in TASK_ENDED or view.state is TaskState.COMPLETED:
        text = f"{task} is {view.state}: only a failed or cancelled task can be retried"
        raise HerdError.of(Code.CONFLICT, text, field="task", remedy="submit another task")
    command = validated(RetryTask, task=task, requested_by=session.caller.name)
    await session.herd.connection.command(command, task)
    return accepted_response(task, f"/tasks/{task}")


def _public_profile(profile: Profile) -> Profile:
    """The profile without values and paths of the operator, which no task needs."""
    return profile.model_copy(update={"env": {}, "forward_env": frozenset(), "mounts": ()})


def _reason(body: BaseModel | None) -> str:
    return "" if body is None else str(getattr(body, "reason", ""))
