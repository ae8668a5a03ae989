"""Queries of live tasks and sandboxes, in pages, newest first."""

import heapq
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, Generic, TypeVar

from sandherd.contracts.names import FLEET
from sandherd.contracts.requests import LiveSandboxes, LiveTasks, SandboxList, SandboxView, TaskList, TaskView
from sandherd.contracts.states import TaskState
from sandherd.service.cursors import read_cursor, write_cursor
from sandherd.service.service import IncomingRequest
from spawner.live_state import LiveState, sandbox_key, task_key
from spawner.records.record import IndexEntry
from spawner.tasks.queue import Queue

QueryT = TypeVar("QueryT", LiveTasks, LiveSandboxes)
ViewT = TypeVar("ViewT", TaskView, SandboxView)
PagePosition = tuple[str, str]
"""A record's sort key: its time, as text that sorts like the time, and its key."""

_MAX_BYTES: Final = 512 * 1024
"""Maximum bytes of a page; the broker's limit for a message is 1 MB. A longer page ends early."""


@dataclass(frozen=True)
class LivePage(Generic[ViewT]):
    """A page of views, and the place of its last view if there are more."""

    views: list[ViewT]
    end: PagePosition | None


class LiveQueries:
    """Answers `spawner.tasks` and `spawner.sandboxes`."""

    def __init__(self, live: LiveState, queue: Queue) -> None:
        self._live = live
        self._queue = queue

    async def tasks(self, incoming: IncomingRequest[LiveTasks]) -> TaskList:
        """The tasks of a project, or of all projects. A task requested by name is shown in full."""
        request = incoming.request
        wanted: list[IndexEntry[TaskView]] = [
            known
            for key, known in self._live.task_index.items()
            if _in(incoming.project, key) and request.state in {None, known.view.state}
        ]
        if request.task:
            wanted = [known for known in wanted if known.view.task == request.task]
            whole = [await self._full_view(known.view) for known in wanted[: request.limit]]
            return TaskList(tasks=[self._explained(view) for view in whole])
        page = page_of(wanted, _task_position, request.limit, parse_cursor(request, incoming.project))
        return TaskList(tasks=[self._explained(view) for view in page.views], next_cursor=_cursor(page, incoming))

    async def sandboxes(self, incoming: IncomingRequest[LiveSandboxes]) -> SandboxList:
        """The sandboxes of a project, or of all projects."""
        request = incoming.request
        wanted = [
            known
            for key, known in self._live.sandbox_index.items()
            if _in(incoming.project, key)
            and request.state in {None, known.view.state}
            and request.sandbox in {None, known.view.sandbox}
        ]
        page = page_of(wanted, _sandbox_position, request.limit, parse_cursor(request, incoming.project))
        return SandboxList(sandboxes=page.views, next_cursor=_cursor(page, incoming))

    def _explained(self, view: TaskView) -> TaskView:
        """The view with what the task waits for, if it is pending."""
        if view.state is not TaskState.PENDING:
            return view
        key, now = task_key(view), self._live.now()
        found = {"waits_for": self._queue.waits_for(key, now), "score": self._queue.score(key, now)}
        return view.model_copy(update=found)

    async def _full_view(self, view: TaskView) -> TaskView:
        held = await self._live.tasks.load(task_key(view))
        return held.record.view(whole=True) if held else view


def page_of(
    known: Iterable[IndexEntry[ViewT]], place: Callable[[ViewT], PagePosition], limit: int, after: PagePosition | None
) -> LivePage[ViewT]:
    """The newest views after a position. Pure."""
    views = (item.view for item in known)
    rest = heapq.nlargest(limit + 1, (view for view in views if after is None or place(view) < after), key=place)
    page: list[ViewT] = []
    weight = 0
    for view in rest[:limit]:
        weight += len(view.model_dump_json())
        if page and weight > _MAX_BYTES:
            break
        page.append(view)
    return LivePage(page, place(page[-1]) if page and len(page) < len(rest) else None)


def parse_cursor(request: LiveTasks | LiveSandboxes, project: str) -> PagePosition | None:
    """Where the last page ended, from the request's cursor. Raises `ContractError` for an invalid cursor.

    Versions before this one wrote `<time>~<key>` instead, which is accepted: a user may have such a cursor.
    """
    time, tilde, key = (request.cursor or "").partition("~")
    if tilde and _is_time(time):
        return time, key
    found = read_cursor(request, project, request.cursor or None, (str, str))
    return (found[0], found[1]) if found else None


def _cursor(page: LivePage[ViewT], incoming: IncomingRequest[QueryT]) -> str | None:
    return write_cursor(incoming.request, incoming.project, page.end) if page.end else None


def _is_time(text: str) -> bool:
    try:
        datetime.fromisoformat(text)
    except ValueError:
        return False
    return True


def _in(project: str, key: str) -> bool:
    return project == FLEET or key.startswith(f"{project}.")


def _task_position(view: TaskView) -> PagePosition:
    return _time(view.submitted_at), task_key(view)


def _sandbox_position(view: SandboxView) -> PagePosition:
    return _time(view.requested_at), sandbox_key(view)


def _time(moment: datetime) -> str:
    """In UTC with six decimals, so that the texts sort like the times."""
    return moment.astimezone(UTC).isoformat(timespec="microseconds")
