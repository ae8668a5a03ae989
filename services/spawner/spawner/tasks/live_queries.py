"""Queries of live tasks and sandboxes: filtered and in pages, in the requested order."""

import heapq
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from operator import gt, lt
from typing import Any, Final, Generic, TypeVar

from sandherd.contracts.labels import matches
from sandherd.contracts.names import FLEET
from sandherd.contracts.requests import (
    GetSubmittedTask,
    ListLiveSandboxes,
    ListLiveTasks,
    SandboxList,
    SandboxView,
    SubmittedTask,
    TaskList,
    TaskView,
)
from sandherd.contracts.requests.live_state import SortOrder
from sandherd.contracts.states import TaskState
from sandherd.service.cursors import read_cursor, write_cursor
from sandherd.service.service import IncomingRequest
from spawner.live_state import LiveState, sandbox_key, task_key
from spawner.records.availability import unknown
from spawner.records.base_record import IndexEntry
from spawner.tasks.task_queue import TaskQueue
from spawner.tasks.task_record import TaskFacts
from spawner.tasks.task_secrets import as_submitted

QueryT = TypeVar("QueryT", ListLiveTasks, ListLiveSandboxes)
ViewT = TypeVar("ViewT", TaskView, SandboxView)
PagePosition = tuple[str, str]
"""A record's position in a list: the text by which it is sorted (its time, name or state), and its key."""

_MAX_BYTES: Final = 512 * 1024
"""Maximum bytes of a page; the broker's limit for a message is 1 MB. A longer page ends early."""


@dataclass(frozen=True)
class LivePage(Generic[ViewT]):
    """A page of views, and the position of its last view if there are more."""

    views: list[ViewT]
    end: PagePosition | None


class LiveQueries:
    """Handles the requests `spawner.tasks`, `spawner.sandboxes` and `spawner.submitted_task`."""

    def __init__(self, live: LiveState, queue: TaskQueue) -> None:
        self._live = live
        self._queue = queue

    async def tasks(self, incoming: IncomingRequest[ListLiveTasks]) -> TaskList:
        """The tasks of a project, or of all projects. A task requested by name is shown in full."""
        request = incoming.request
        wanted: list[IndexEntry[TaskView]] = [
            known
            for key, known in self._live.task_index.items()
            if _is_in(incoming.project, key) and is_wanted_task(known.view, request)
        ]
        if request.task:
            whole = [await self._full_view(known.view) for known in wanted[: request.limit]]
            return TaskList(tasks=[self._with_waiting_reason(view) for view in whole])
        page = _page(wanted, task_position, incoming)
        return TaskList(
            tasks=[self._with_waiting_reason(view) for view in page.views], next_cursor=_cursor(page, incoming)
        )

    async def submitted(self, incoming: IncomingRequest[GetSubmittedTask]) -> SubmittedTask:
        """The spec of a task, to submit it again. Raises `ContractError` (`not_found`)."""
        task = incoming.request.task
        held = await self._live.tasks.load(f"{incoming.project}.{task}")
        if held is None:
            raise unknown("task", incoming.project, task)
        return SubmittedTask(task=task, spec=as_submitted(held.record.spec))

    async def sandboxes(self, incoming: IncomingRequest[ListLiveSandboxes]) -> SandboxList:
        """The sandboxes of a project, or of all projects."""
        request = incoming.request
        wanted = [
            known
            for key, known in self._live.sandbox_index.items()
            if _is_in(incoming.project, key) and is_wanted_sandbox(known.view, self._labels_of(known.view), request)
        ]
        page = _page(wanted, sandbox_position, incoming)
        return SandboxList(sandboxes=page.views, next_cursor=_cursor(page, incoming))

    def _labels_of(self, sandbox: SandboxView) -> Mapping[str, str]:
        """The labels of a sandbox's task; none if it has no task."""
        known = self._live.task_index.get(f"{sandbox.project}.{sandbox.task}") if sandbox.task else None
        return known.view.labels if known else {}

    def _with_waiting_reason(self, view: TaskView) -> TaskView:
        """The view. If the task is pending, what it waits for and its score are added."""
        if view.state is not TaskState.PENDING:
            return view
        key, now = task_key(view), self._live.now()
        found = {"waits_for": self._queue.waits_for(key, now), "score": self._queue.score(key, now)}
        return view.model_copy(update=found)

    async def _full_view(self, view: TaskView) -> TaskView:
        held = await self._live.tasks.load(task_key(view))
        return self._with_pull_request(held.record.view(whole=True)) if held else view

    def _with_pull_request(self, view: TaskFacts) -> TaskView:
        known = self._live.branch_index.get(f"{view.project}.{view.branch_id}") if view.branch_id else None
        pull = known.view.pull if known else None
        return view.model_copy(update={"pull_request": pull.view() if pull else None})


def is_wanted_task(view: TaskView, request: ListLiveTasks) -> bool:
    """Whether a task meets the conditions of a request. Pure."""
    states = request.wanted_states
    return (
        (not states or view.state in states)
        and request.task in {None, view.task}
        and (request.since is None or view.submitted_at >= request.since)
        and (not request.contains or request.contains.casefold() in f"{view.task} {view.text}".casefold())
        and matches(view.labels, request.labels)
    )


def is_wanted_sandbox(view: SandboxView, labels: Mapping[str, str], request: ListLiveSandboxes) -> bool:
    """Whether a sandbox, whose task has these labels, meets the conditions of a request. Pure."""
    states = request.wanted_states
    return (
        (not states or view.state in states)
        and request.sandbox in {None, view.sandbox}
        and (request.since is None or view.requested_at >= request.since)
        and matches(labels, request.labels)
    )


def page_of(
    known: Iterable[IndexEntry[ViewT]],
    place: Callable[[ViewT], PagePosition],
    limit: int,
    after: PagePosition | None,
    *,
    ascending: bool = False,
) -> LivePage[ViewT]:
    """The next views after a position: those with the highest positions, or with the lowest if `ascending`. Pure."""
    select_first, is_after = (heapq.nsmallest, gt) if ascending else (heapq.nlargest, lt)
    views = (item.view for item in known)
    next_views = select_first(
        limit + 1, (view for view in views if after is None or is_after(place(view), after)), key=place
    )
    page: list[ViewT] = []
    page_bytes = 0
    for view in next_views[:limit]:
        page_bytes += len(view.model_dump_json())
        if page and page_bytes > _MAX_BYTES:
            break
        page.append(view)
    return LivePage(page, place(page[-1]) if page and len(page) < len(next_views) else None)


def parse_cursor(request: ListLiveTasks | ListLiveSandboxes, project: str) -> PagePosition | None:
    """The position at which the last page ended, from the request's cursor; None for the first page.

    Raises `ContractError` for an invalid cursor.

    Earlier versions wrote `<time>~<key>`. This is accepted, because a user may still have such a cursor.
    """
    time, tilde, key = (request.cursor or "").partition("~")
    if tilde and _is_time(time):
        return time, key
    found = read_cursor(request, project, request.cursor or None, (str, str))
    return (found[0], found[1]) if found else None


def _page(
    wanted: Iterable[IndexEntry[ViewT]],
    position: Callable[[SortOrder, ViewT], PagePosition],
    incoming: IncomingRequest[Any],
) -> LivePage[ViewT]:
    request = incoming.request
    after = parse_cursor(request, incoming.project)
    return page_of(wanted, partial(position, request.sort), request.limit, after, ascending=request.sort != "newest")


def _cursor(page: LivePage[ViewT], incoming: IncomingRequest[QueryT]) -> str | None:
    return write_cursor(incoming.request, incoming.project, page.end) if page.end else None


def _is_time(text: str) -> bool:
    try:
        datetime.fromisoformat(text)
    except ValueError:
        return False
    return True


def _is_in(project: str, key: str) -> bool:
    return project == FLEET or key.startswith(f"{project}.")


def task_position(sort: SortOrder, view: TaskView) -> PagePosition:
    """The position of a task in a list of this order."""
    return _sorted_by(sort, view.submitted_at, view.task, view.state), task_key(view)


def sandbox_position(sort: SortOrder, view: SandboxView) -> PagePosition:
    """The position of a sandbox in a list of this order."""
    return _sorted_by(sort, view.requested_at, view.sandbox, view.state), sandbox_key(view)


def _sorted_by(sort: SortOrder, moment: datetime, name: str, state: str) -> str:
    return {"name": name, "state": str(state)}.get(sort) or _time(moment)


def _time(moment: datetime) -> str:
    """The time as text, in UTC with six decimals, so that the texts sort like the times."""
    return moment.astimezone(UTC).isoformat(timespec="microseconds")
