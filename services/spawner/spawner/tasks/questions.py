"""Answers about what is so now: tasks and sandboxes, from the live buckets, page by page, newest first."""

import heapq
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Final, TypeVar

from sandherd.bus.service import Asked
from sandherd.contracts.errors import Code, ContractError
from sandherd.contracts.names import FLEET
from sandherd.contracts.requests import LiveSandboxes, LiveTasks, SandboxList, SandboxView, TaskList, TaskView
from sandherd.contracts.states import TaskState
from spawner.live import Live, sandbox_key, task_key
from spawner.records.known import Known
from spawner.tasks.queue import Queue

ViewT = TypeVar("ViewT", TaskView, SandboxView)
Place = tuple[str, str]
"""Where a record stands in the order: its time, as text that sorts like it, and its key."""

_MOST_BYTES: Final = 512 * 1024
"""What an answer may weigh; the broker carries a megabyte. A page ends early rather than not at all."""


class Questions:
    """Answers `spawner.tasks` and `spawner.sandboxes`."""

    def __init__(self, live: Live, queue: Queue) -> None:
        self._live = live
        self._queue = queue

    async def tasks(self, asked: Asked[LiveTasks]) -> TaskList:
        """The tasks of a project, or of all; one that is asked for by name is shown whole."""
        request = asked.request
        wanted: list[Known[TaskView]] = [
            known
            for key, known in self._live.task_index.items()
            if _in(asked.project, key) and request.state in {None, known.view.state}
        ]
        if request.task:
            wanted = [known for known in wanted if known.view.task == request.task]
            whole = [await self._whole(known.view) for known in wanted[: request.limit]]
            return TaskList(tasks=[self._explained(view) for view in whole])
        page, cursor = page_of(wanted, _task_place, request.limit, request.cursor)
        return TaskList(tasks=[self._explained(view) for view in page], next_cursor=cursor)

    async def sandboxes(self, asked: Asked[LiveSandboxes]) -> SandboxList:
        """The sandboxes of a project, or of all."""
        request = asked.request
        wanted = [
            known
            for key, known in self._live.sandbox_index.items()
            if _in(asked.project, key)
            and request.state in {None, known.view.state}
            and request.sandbox in {None, known.view.sandbox}
        ]
        page, cursor = page_of(wanted, _sandbox_place, request.limit, request.cursor)
        return SandboxList(sandboxes=page, next_cursor=cursor)

    def _explained(self, view: TaskView) -> TaskView:
        """A task that waits, with what it waits for."""
        if view.state is not TaskState.PENDING:
            return view
        key, now = task_key(view), self._live.now()
        found = {"waits_for": self._queue.waits_for(key, now), "score": self._queue.score(key, now)}
        return view.model_copy(update=found)

    async def _whole(self, view: TaskView) -> TaskView:
        held = await self._live.tasks.load(task_key(view))
        return held.record.view(whole=True) if held else view


def page_of(
    known: Iterable[Known[ViewT]], place: Callable[[ViewT], Place], limit: int, cursor: str | None
) -> tuple[list[ViewT], str | None]:
    """The newest that stand behind the cursor, and the cursor for the next page. Raises `ContractError`."""
    behind = read_cursor(cursor) if cursor else None
    views = (item.view for item in known)
    rest = heapq.nlargest(limit + 1, (view for view in views if behind is None or place(view) < behind), key=place)
    page: list[ViewT] = []
    weight = 0
    for view in rest[:limit]:
        weight += len(view.model_dump_json())
        if page and weight > _MOST_BYTES:
            break
        page.append(view)
    more = len(page) < len(rest)
    return page, ("~".join(place(page[-1])) if page and more else None)


def read_cursor(cursor: str) -> Place:
    """Where the last page ended. Raises `ContractError` for what was never a cursor."""
    time, tilde, key = cursor.partition("~")
    try:
        datetime.fromisoformat(time)
    except ValueError:
        tilde = ""
    if not tilde:
        raise ContractError(
            Code.INVALID_FIELD, "cursor: not one that was given", field="cursor", remedy="ask without a cursor"
        )
    return time, key


def _in(project: str, key: str) -> bool:
    return project == FLEET or key.startswith(f"{project}.")


def _task_place(view: TaskView) -> Place:
    return _time(view.submitted_at), task_key(view)


def _sandbox_place(view: SandboxView) -> Place:
    return _time(view.requested_at), sandbox_key(view)


def _time(moment: datetime) -> str:
    """In UTC and always with six decimals, so that the texts sort like the times."""
    return moment.astimezone(UTC).isoformat(timespec="microseconds")
