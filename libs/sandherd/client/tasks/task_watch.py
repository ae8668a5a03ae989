"""Waits for the end of several tasks by one subscription, without polling."""

from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Final, Self

from sandherd.client import queries
from sandherd.client.connection import Connection
from sandherd.client.errors import HerdError, validated
from sandherd.client.events import decoder
from sandherd.client.events.change_feed import ChangeFeed
from sandherd.client.events.target import TASK_REFUSED, Event
from sandherd.client.pending_creations import PendingCreations
from sandherd.client.tasks.progress import SUBMITTED, TaskProgress
from sandherd.contracts.commands import TaskSpec
from sandherd.contracts.errors import Code
from sandherd.contracts.labels import BATCH_LABEL
from sandherd.contracts.requests import ListEvents, ListLiveTasks, ListPastTasks, TaskView

_PAGE_SIZE: Final = 500
OnProgress = Callable[[TaskProgress], None]
"""A function that is called when the wait begins, and after each change."""


@dataclass(frozen=True)
class TaskSelection:
    """The tasks with these names, or all tasks that have all these labels."""

    names: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    are_new: bool = False
    """Whether the tasks are being submitted now, so that some may not be known yet."""

    async def views(self, send: queries.SendRequest, expected: Collection[str] = ()) -> list[TaskView]:
        """The current views of the tasks that are known.

        Raises `HerdError` (`not_found`) if a named task is unknown, or if no task has the labels. It does not raise it
        for tasks that are new or `expected`.
        """
        if not self.labels:
            return [view for name in self.names for view in await self._named_tasks(send, name, expected)]
        views_by_name = {view.task: view for view in await _past_tasks(send, self.labels)}
        live = [view async for view in live_tasks(send, self.labels)]
        views_by_name |= {view.task: view for view in live}
        if not (views_by_name or expected or self.are_new):
            raise HerdError.of(
                Code.NOT_FOUND,
                f"no task has {_label_text(self.labels)}",
                field="label",
                remedy="see `sandherd tasks list -o json`",
            )
        return sorted(views_by_name.values(), key=lambda view: (view.submitted_at, view.task))

    def expected(self, submitted: PendingCreations) -> list[str]:
        """The selected tasks among those that this client has submitted. The spawner may not have read them yet."""
        if self.labels:
            return submitted.tasks_with(self.labels)
        return [name for name in self.names if submitted.of("task", name)]

    async def _named_tasks(self, send: queries.SendRequest, name: str, expected: Collection[str]) -> list[TaskView]:
        try:
            return [await queries.task(send, name)]
        except HerdError as error:
            if (self.are_new or name in expected) and error.problem.code is Code.NOT_FOUND:
                return []
            raise


async def live_tasks(send: queries.SendRequest, labels: Mapping[str, str], **filters: Any) -> AsyncIterator[TaskView]:
    """The tasks that the spawner has and that have all these labels, oldest first. Raises `HerdError`.

    `filters` are further fields of `ListLiveTasks`.
    """
    request = validated(ListLiveTasks, labels=labels, limit=_PAGE_SIZE, sort="oldest", **filters)
    async for page in queries.pages(send, request):
        for view in page.tasks:
            yield view


async def _past_tasks(send: queries.SendRequest, labels: Mapping[str, str]) -> list[TaskView]:
    """The tasks in the history that have all these labels; an empty list if the history is unavailable.

    A wait works without the history, because the spawner has all tasks that have not ended.
    """
    request = validated(ListPastTasks, labels=labels, limit=_PAGE_SIZE)
    try:
        return [view async for page in queries.pages(send, request) for view in page.tasks]
    except HerdError:
        return []


class TaskWatch:
    """Follows the states of the selected tasks. It is a context manager, which subscribes to their events."""

    def __init__(self, connection: Connection, progress: TaskProgress, selection: TaskSelection) -> None:
        self._connection = connection
        self._feed = ChangeFeed(connection, connection.project, ["task"])
        self._selection = selection
        self.progress = progress

    async def __aenter__(self) -> Self:
        await self._feed.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._feed.__aexit__(kind, error, trace)

    async def refresh(self) -> None:
        """Query the states. Events that arrive during the query are applied after its result."""
        self._feed.clear_stale()
        send = self._connection.request
        expected = self._selection.expected(self._connection.creations)
        self.progress.update(await self._selection.views(send, expected))
        self.progress.expect(expected)
        for task in [outcome.task for outcome in self.progress.outcomes if outcome.state == SUBMITTED]:
            for event in await _refusals(send, task):
                self.progress.apply(event)

    async def change(self) -> None:
        """Wait for the next event, and ignore it. Call `refresh` afterwards."""
        await self._feed.wait()
        self._feed.take()

    async def until(self, done: Callable[[], bool], on_progress: OnProgress) -> None:
        """Wait until `done` returns true. It is called after each change."""
        while True:
            if self._feed.is_stale:
                await self.refresh()
            for event in self._feed.take():
                self.progress.apply(event)
            on_progress(self.progress)
            if done():
                return
            await self._feed.wait()


async def _refusals(send: queries.SendRequest, task: str) -> list[Event]:
    """The stored events that refuse the submission of a task; an empty list if the history is unavailable.

    A refused task is in no list of tasks, so only these events show that it was refused.
    """
    try:
        reply = await send(validated(ListEvents, entity=task, types=sorted(TASK_REFUSED)))
    except HerdError:
        return []
    return [decoder.from_history(stored) for stored in reply.events]


def silent(_progress: TaskProgress) -> None:
    """An `OnProgress` that shows nothing."""


def selection_of_names(tasks: Iterable[str]) -> TaskSelection:
    """The selection of the tasks with these names, without repetitions."""
    return TaskSelection(names=tuple(dict.fromkeys(tasks)))


def selection_of_submitted(submitted: Mapping[str, TaskSpec]) -> TaskSelection:
    """The selection of tasks that are being submitted: by their names, and by their batch if all are of one batch."""
    batches = {spec.labels.get(BATCH_LABEL) for spec in submitted.values()}
    batch = batches.pop() if len(batches) == 1 else None
    labels = {BATCH_LABEL: batch} if batch else {}
    return TaskSelection(names=tuple(submitted), labels=labels, are_new=True)


def _label_text(labels: Mapping[str, str]) -> str:
    return ", ".join(f"{key}={value}" for key, value in labels.items())
