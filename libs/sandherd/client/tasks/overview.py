"""The unfinished tasks: their current activity, their cost, and which of them need a user."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from pydantic import BaseModel

from sandherd.client import queries
from sandherd.client.errors import HerdError, validated
from sandherd.client.tasks.wait_reasons import with_approvals
from sandherd.contracts import requests
from sandherd.contracts.events.monitor import MonitorDeadFound, MonitorGuardianAnalysed, MonitorInterventionOutcome
from sandherd.contracts.labels import NAME_LABEL
from sandherd.contracts.requests import (
    GroupUsage,
    ListLiveSandboxes,
    ListLiveTasks,
    ListPastSandboxes,
    SandboxView,
    TaskView,
)
from sandherd.contracts.requests.base import Request
from sandherd.contracts.states import SandboxState, TaskState

LIVE: Final = (TaskState.PENDING, TaskState.ASSIGNED, TaskState.RUNNING)
"""The states of tasks that have not ended."""
MAX_TASKS: Final = 500
HISTORY_SECONDS: Final = 3.0
"""The timeout of an optional request, to the history or to the spawner."""
_FINDING_EVENTS: Final = (MonitorGuardianAnalysed.type, MonitorDeadFound.type)
_OUTCOME_EVENT: Final = MonitorInterventionOutcome.type
_UNSOLVED_OUTCOMES: Final = frozenset({"ignored", "undelivered"})


class WorkView(BaseModel):
    """An unfinished task and its progress. Values of the history are None if the history does not reply."""

    project: str
    task: str
    name: str | None = None
    """The name of the task in the file that it was submitted from."""
    state: str
    attempt: int = 1
    sandbox: str | None = None
    submitted_at: datetime
    started_at: datetime | None = None
    last_event_at: datetime | None = None
    """The time of the last event of its agent."""
    tokens: int | None = None
    """The tokens of all attempts: input, output, and cache tokens."""
    cost_micro_usd: int | None = None
    needs: str | None = None
    """Why the task needs a user: an approval, a paused sandbox, or a diagnosis of the monitor. None if it does not
    need a user."""
    waits_for: str | None = None
    """The reason why the task waits, if it does not need a user."""
    text: str = ""


class Overview(BaseModel):
    """The unfinished tasks: those that need a user first, then by age."""

    tasks: list[WorkView]
    more: bool = False
    """Whether there are unfinished tasks that are not in `tasks`."""


async def overview(send: queries.SendRequest) -> Overview:
    """Request the overview.

    Raises `HerdError` if the spawner does not reply with the tasks. All other replies are optional.
    """
    live = await send(validated(ListLiveTasks, states=list(LIVE), limit=MAX_TASKS, sort="oldest"))
    tasks = await with_approvals(send, live.tasks)
    names = [view.task for view in tasks]
    running = [SandboxState.RUNNING, SandboxState.PAUSED]
    now, past, usage, findings = await asyncio.gather(
        _optional_reply(send, validated(ListLiveSandboxes, states=[SandboxState.PAUSED], limit=1000)),
        _optional_reply(send, validated(ListPastSandboxes, states=running, limit=1000)),
        _optional_reply(send, validated(requests.GetUsage, by="task", tasks=names, limit=1000) if names else None),
        _optional_reply(
            send,
            validated(requests.ListEvents, types=[*_FINDING_EVENTS, _OUTCOME_EVENT], newest_first=True, limit=1000),
        ),
    )
    views = work_views(
        tasks,
        paused={view.sandbox for view in now.sandboxes} if now else set(),
        known={view.sandbox: view for view in past.sandboxes} if past else {},
        usage=usage.groups if usage else None,
        diagnoses=diagnoses_of(found.envelope for found in findings.events) if findings else {},
    )
    return Overview(tasks=views, more=live.next_cursor is not None)


def work_views(
    tasks: Iterable[TaskView],
    *,
    paused: set[str],
    known: Mapping[str, SandboxView],
    usage: Sequence[GroupUsage] | None,
    diagnoses: Mapping[str, str],
) -> list[WorkView]:
    """The views of unfinished tasks, those that need a user first. Pure.

    `paused` are the paused sandboxes; `known` are the views of sandboxes in the history.
    """
    usage_by_task = {(group.project, group.group): group for group in usage or []}
    views = [_view(task, paused, known, usage_by_task if usage is not None else None, diagnoses) for task in tasks]
    return sorted(views, key=lambda view: (view.needs is None, view.submitted_at, view.task))


def diagnoses_of(newest_first: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """The unsolved findings of the monitor by sandbox, from its events. Pure."""
    newest: dict[str, Mapping[str, Any]] = {}
    for event in newest_first:
        newest.setdefault(event["subject"], event)
    texts = {sandbox: _diagnosis(event) for sandbox, event in newest.items()}
    return {sandbox: text for sandbox, text in texts.items() if text}


def _diagnosis(event: Mapping[str, Any]) -> str | None:
    data = event.get("data", {})
    if event["type"] == _OUTCOME_EVENT:
        outcome = data.get("outcome")
        return f"diagnosis: the monitor's message was {outcome}" if outcome in _UNSOLVED_OUTCOMES else None
    if event["type"] == MonitorGuardianAnalysed.type:
        return f"diagnosis: {data.get('rule')}: {data.get('summary')}" if data.get("needs_steering") else None
    return "diagnosis: its worker does not respond"


def _view(
    task: TaskView,
    paused: set[str],
    known: Mapping[str, SandboxView],
    usage_by_task: "Mapping[tuple[str | None, str | None], GroupUsage] | None",
    diagnoses: Mapping[str, str],
) -> WorkView:
    sandbox, needs = task.sandbox or "", _needs(task, paused, diagnoses)
    group = None if usage_by_task is None else usage_by_task.get((task.project, task.task), GroupUsage())
    return WorkView(
        **task.model_dump(include={"project", "task", "attempt", "sandbox", "submitted_at", "started_at", "text"}),
        name=task.labels.get(NAME_LABEL),
        state="paused" if sandbox in paused else task.state.value,
        last_event_at=known[sandbox].last_event_at if sandbox in known else None,
        tokens=None if group is None else tokens_of(group),
        cost_micro_usd=None if group is None else group.cost_micro_usd,
        needs=needs,
        waits_for=None if needs else task.waits_for,
    )


def _needs(task: TaskView, paused: set[str], diagnoses: Mapping[str, str]) -> str | None:
    if task.state is TaskState.RUNNING and task.waits_for:
        return task.waits_for
    if task.sandbox in paused:
        return f"resume: sandherd sandboxes resume {task.sandbox}"
    return diagnoses.get(task.sandbox or "") if task.state is TaskState.RUNNING else None


def tokens_of(usage: requests.Usage) -> int:
    """The sum of input, output and cache tokens."""
    return usage.input_tokens + usage.output_tokens + usage.cache_read_tokens + usage.cache_write_tokens


async def cost_of(send: queries.SendRequest, task: TaskView) -> int | None:
    """The cost of a task so far, in millionths of a US dollar; None if the history does not reply."""
    usage = await _optional_reply(send, validated(requests.GetUsage, by="task", tasks=[task.task], limit=1))
    return None if usage is None else int(usage.total.cost_micro_usd)


async def _optional_reply(send: queries.SendRequest, request: Request[Any] | None) -> Any:
    """The reply; None if there is no request or no reply."""
    try:
        return None if request is None else await send(request, timeout=HISTORY_SECONDS)
    except HerdError:
        return None
