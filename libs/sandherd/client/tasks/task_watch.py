"""Waits for the end of several tasks by one subscription, without polling."""

from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Final, Self

from sandherd.client import queries
from sandherd.client.connection import Connection
from sandherd.client.errors import HerdError, made
from sandherd.client.events import decoder
from sandherd.client.events.change_feed import ChangeFeed
from sandherd.client.events.target import TASK_REFUSED, Event
from sandherd.client.pending_creations import PendingCreations
from sandherd.client.tasks.progress import UNKNOWN, TaskProgress
from sandherd.contracts.commands import TaskSpec
from sandherd.contracts.errors import Code
from sandherd.contracts.labels import BATCH_LABEL
from sandherd.contracts.requests import ListEvents, ListLiveTasks, ListPastTasks, TaskView

PAGE: Final = 500
OnProgress = Callable[[TaskProgress], None]
"""Called at first, and after each change."""


@dataclass(frozen=True)
class TaskSelection:
    """Which tasks: those with these names, or those that have all these labels."""

    names: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    are_new: bool = False
    """Whether they are just being submitted, so that some may not be known yet."""

    async def views(self, send: queries.SendRequest, expected: Collection[str] = ()) -> list[TaskView]:
        """Their current views. Raises `HerdError` (`not_found`) if there is no such task.

        Not if they are new, or `expected`.
        """
        if not self.labels:
            return [view for name in self.names for view in await self._named(send, name, expected)]
        known = {view.task: view for view in await _past(send, self.labels)}
        live = [view async for view in labelled(send, self.labels)]
        known |= {view.task: view for view in live}
        if not (known or expected or self.are_new):
            raise HerdError.of(
                Code.NOT_FOUND,
                f"no task has {_shown(self.labels)}",
                field="label",
                remedy="see `sandherd tasks list -o json`",
            )
        return sorted(known.values(), key=lambda view: (view.submitted_at, view.task))

    def expected(self, submitted: PendingCreations) -> list[str]:
        """The selected tasks of a client's submissions; the spawner may not have read them yet."""
        if self.labels:
            return submitted.tasks_with(self.labels)
        return [name for name in self.names if submitted.of("task", name)]

    async def _named(self, send: queries.SendRequest, name: str, expected: Collection[str]) -> list[TaskView]:
        try:
            return [await queries.task(send, name)]
        except HerdError as error:
            if (self.are_new or name in expected) and error.problem.code is Code.NOT_FOUND:
                return []
            raise


async def labelled(send: queries.SendRequest, labels: Mapping[str, str], **which: Any) -> AsyncIterator[TaskView]:
    """The tasks of the spawner that have all these labels, oldest first; its requests raise `HerdError`."""
    request = made(ListLiveTasks, labels=labels, limit=PAGE, sort="oldest", **which)
    async for page in queries.pages(send, request):
        for view in page.tasks:
            yield view


async def _past(send: queries.SendRequest, labels: Mapping[str, str]) -> list[TaskView]:
    """Tasks of the history, which may be unavailable: the spawner has all that have not ended."""
    request = made(ListPastTasks, labels=labels, limit=PAGE)
    try:
        return [view async for page in queries.pages(send, request) for view in page.tasks]
    except HerdError:
        return []


class TaskWatch:
    """Follows the states of tasks, from when it is entered until it is left."""

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
        """Query the states. What happens meanwhile is folded in after it."""
        self._feed.refreshing()
        send = self._connection.request
        expected = self._selection.expected(self._connection.creations)
        self.progress.see(await self._selection.views(send, expected))
        self.progress.expect(expected)
        for task in [outcome.task for outcome in self.progress.outcomes if outcome.state == UNKNOWN]:
            for event in await _refusals(send, task):
                self.progress.apply(event)

    async def change(self) -> None:
        """Return after the next event."""
        await self._feed.wait()
        self._feed.take()

    async def until(self, done: Callable[[], bool], on_progress: OnProgress) -> None:
        """Wait until `done`, which is asked after each change."""
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
    """Stored events that refuse the submission of a task, which is not in any list then; none without a history."""
    try:
        found = await send(made(ListEvents, entity=task, types=sorted(TASK_REFUSED)))
    except HerdError:
        return []
    return [decoder.from_history(stored) for stored in found.events]


def silent(_progress: TaskProgress) -> None:
    """Shows nothing."""


def names_of(tasks: Iterable[str]) -> TaskSelection:
    """The selection of these tasks, each once."""
    return TaskSelection(names=tuple(dict.fromkeys(tasks)))


def selection_of(submitted: Mapping[str, TaskSpec]) -> TaskSelection:
    """The selection of tasks that are being submitted: by their batch, if they have the same one."""
    batches = {spec.labels.get(BATCH_LABEL) for spec in submitted.values()}
    batch = batches.pop() if len(batches) == 1 else None
    labels = {BATCH_LABEL: batch} if batch else {}
    return TaskSelection(names=tuple(submitted), labels=labels, are_new=True)


def _shown(labels: Mapping[str, str]) -> str:
    return ", ".join(f"{key}={value}" for key, value in labels.items())
