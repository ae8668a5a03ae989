"""Operations on several tasks at once: submit a batch, wait for tasks, cancel those with a label, request costs."""

import asyncio
from collections.abc import Mapping
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal

from sandherd.client.errors import HerdError, checked_name, validated
from sandherd.client.task_files import TaskFiles
from sandherd.contracts import requests
from sandherd.contracts.errors import Code
from sandherd.contracts.labels import BATCH_LABEL, NAME_LABEL
from sandherd.contracts.states import TaskState
from sandherd.lazy_imports import LazyModule

if TYPE_CHECKING:
    from sandherd.client.tasks import default_harness, named_checks, progress, task_watch, unread_commands
    from sandherd.client.tasks import overview as overviews
    from sandherd.client.tasks.overview import Overview
    from sandherd.client.tasks.progress import TaskOutcome
    from sandherd.client.tasks.task_watch import OnProgress
    from sandherd.contracts import commands as wire
    from sandherd.contracts.commands import TaskSpec
else:  # on first use, as in `client.herd`
    default_harness = LazyModule("sandherd.client.tasks.default_harness")
    named_checks = LazyModule("sandherd.client.tasks.named_checks")
    overviews = LazyModule("sandherd.client.tasks.overview")
    progress = LazyModule("sandherd.client.tasks.progress")
    task_watch = LazyModule("sandherd.client.tasks.task_watch")
    unread_commands = LazyModule("sandherd.client.tasks.unread_commands")
    wire = LazyModule("sandherd.contracts.commands")

ACCEPTANCE_SECONDS: Final = 5.0
"""Maximum time for the spawner to accept the next task of a batch, before it counts as unavailable."""
USAGE_SECONDS: Final = 30.0
"""The timeout of a request for costs."""
LIVE: Final = (TaskState.PENDING, TaskState.ASSIGNED, TaskState.RUNNING)
"""The states of tasks that have not ended."""


class TaskGroups(TaskFiles):
    """The methods of `Herd` for several tasks. Every method raises `HerdError`."""

    async def submit_batch(
        self,
        tasks: "Mapping[str, TaskSpec]",
        *,
        by: str | None = None,
        wait: bool = False,
        timeout: float | None = None,
        on_progress: "OnProgress | None" = None,
    ) -> "list[TaskOutcome]":
        """Submit `tasks`, a mapping of names to specs, in this order. Returns when each is accepted or rejected.

        With `wait`, returns when each has ended, or after `timeout` seconds. Without `wait`, also returns if the
        spawner accepts or rejects no further task for 5 s. The broker has stored the other tasks, and their state is
        `submitted`. Give the tasks the same label, such as `sandherd/batch`, to list and cancel them together.
        """
        await named_checks.check_each(self.check, tasks)
        await default_harness.require_harness(self.connection.request, self.connection.project, tasks)
        task_progress = progress.TaskProgress({task: spec.labels.get(NAME_LABEL) for task, spec in tasks.items()})
        async with task_watch.TaskWatch(
            self.connection, task_progress, task_watch.selection_of_submitted(tasks)
        ) as watch:
            for task, spec in tasks.items():
                await self._submit(task, spec, by)
            if wait:
                await _within(timeout, watch.until(lambda: task_progress.is_over, on_progress or task_watch.silent))
            else:
                await _wait_for_acceptance(watch, on_progress or task_watch.silent)
        return task_progress.outcomes

    async def wait_all(
        self,
        *tasks: str,
        labels: Mapping[str, str] | None = None,
        batch: str | None = None,
        timeout: float | None = None,
        on_progress: "OnProgress | None" = None,
    ) -> "list[TaskOutcome]":
        """Wait until tasks have ended: the named tasks, the tasks that have all these labels, or those of a batch.

        Returns the states of the tasks; after `timeout` seconds, some may not have `ended`. Raises `HerdError`
        (`not_found`) if a task is unknown or no task has the labels, when the spawner has read all commands or after
        30 s: another client may just have submitted it. `on_progress` is called at first and after each change.
        """
        if bool(tasks) == bool(labels or batch):
            raise HerdError.of(
                Code.INVALID_FIELD, "name tasks, or labels, or a batch", field="task", remedy="give one of the three"
            )
        names = [checked_name(task, "task") for task in tasks]
        chosen = (
            task_watch.selection_of_names(names)
            if names
            else task_watch.TaskSelection(labels=_with_batch(labels, batch))
        )
        task_progress = progress.TaskProgress()
        async with task_watch.TaskWatch(self.connection, task_progress, chosen) as watch:
            await unread_commands.query_until_read(self.connection.request, watch.refresh, watch.change, timeout)
            await _within(timeout, watch.until(lambda: task_progress.is_over, on_progress or task_watch.silent))
        return task_progress.outcomes

    async def cancel_all(
        self,
        *,
        labels: Mapping[str, str] | None = None,
        batch: str | None = None,
        reason: str = "",
        by: str | None = None,
    ) -> "dict[str, HerdError | None]":
        """Cancel all tasks that have not ended and have all these labels, or are of a batch.

        Returns for each task, by name, None, or the error if its command could not be sent.
        """
        group_labels = _with_batch(labels, batch)
        if not group_labels:
            raise HerdError.of(Code.INVALID_FIELD, "labels: empty", field="label", remedy="name a label, or a batch")
        live = task_watch.live_tasks(self.connection.request, group_labels, states=list(LIVE))
        return {view.task: await self._cancel_one(view.task, reason, by) async for view in live}

    async def overview(self) -> "Overview":
        """The unfinished tasks: their activity and cost, and for which of them a user has to do something."""
        return await overviews.overview(self.connection.request)

    async def costs(
        self,
        *,
        by: Literal["project", "label", "task", "day", "model"] = "task",
        label: str | None = None,
        labels: Mapping[str, str] | None = None,
        batch: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        limit: int = 100,
    ) -> "requests.UsageList":
        """The tokens and costs that agents reported, in groups, the most expensive group first.

        `label` is the key whose values are the groups of `by="label"`; `labels` and `batch` select tasks.
        """
        question = validated(
            requests.GetUsage,
            by=by,
            label=label,
            labels=_with_batch(labels, batch),
            since=since,
            until=until,
            limit=limit,
        )
        return await self.connection.request(question, timeout=USAGE_SECONDS)

    async def _submit(self, task: str, spec: "TaskSpec", by: str | None) -> None:
        command = validated(
            wire.SubmitTask, task=checked_name(task, "task"), spec=self._seal_secrets(spec), submitted_by=by
        )
        await self.connection.command(command, task)

    async def _cancel_one(self, task: str, reason: str, by: str | None) -> HerdError | None:
        try:
            command: Any = validated(wire.CancelTask, task=task, reason=reason, cancelled_by=by)
            await self.connection.command(command, task)
        except HerdError as error:
            return error
        return None


def _with_batch(labels: Mapping[str, str] | None, batch: str | None) -> dict[str, str]:
    return dict(labels or {}) | ({BATCH_LABEL: batch} if batch else {})


async def _within(timeout: float | None, work: Any) -> None:
    """Await `work` for at most `timeout` seconds; for any time if `timeout` is None."""
    try:
        async with asyncio.timeout(timeout):
            await work
    except TimeoutError:
        return


async def _wait_for_acceptance(watch: "task_watch.TaskWatch", on_progress: "OnProgress") -> None:
    """Wait until all tasks are accepted or rejected, or until none is accepted for `ACCEPTANCE_SECONDS`."""
    task_progress, previous_count = watch.progress, -1
    while not task_progress.is_accepted and task_progress.accepted > previous_count:
        previous_count = task_progress.accepted
        has_more_accepted = partial(_has_more_accepted, task_progress, previous_count)
        await _within(ACCEPTANCE_SECONDS, watch.until(has_more_accepted, on_progress))


def _has_more_accepted(task_progress: "progress.TaskProgress", previous_count: int) -> bool:
    return task_progress.accepted > previous_count
