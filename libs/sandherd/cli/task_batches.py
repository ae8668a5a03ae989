"""Submits the tasks of a file, waits for several tasks, and cancels all tasks with a label or of a batch."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from sandherd.cli.herd_session import Work
from sandherd.cli.local_repositories import examine_local, upload_each
from sandherd.cli.name_prefixes import full_name
from sandherd.cli.options import Format
from sandherd.cli.render import console
from sandherd.cli.render.table import Column
from sandherd.cli.status_line import StatusLine
from sandherd.cli.stderr import print_error
from sandherd.client.errors import HerdError
from sandherd.client.herd import Herd
from sandherd.client.repositories.local import LocalRepository
from sandherd.client.tasks import batch
from sandherd.client.tasks.batch import BatchTask
from sandherd.client.tasks.named_checks import check_each
from sandherd.client.tasks.progress import REJECTED, SUBMITTED, TaskOutcome, TaskProgress, all_completed
from sandherd.client.tasks.resume import resuming_spec
from sandherd.client.terminal_text import write_text
from sandherd.contracts.commands import TaskSpec
from sandherd.contracts.errors import Code
from sandherd.plurals import pluralize

BATCH_HEADER: Final = ("NAME", "TASK", "DEPENDS ON")
OUTCOME_HEADER: Final = ("TASK", "STATE", Column("NAME", 2), Column("ATTEMPT", 3), Column("ERROR", 1, cut=True))
_MAX_LISTED_ERRORS: Final = 5


def submit_batch(file: Path, output: Format, *, labels: Mapping[str, str], wait: bool, timeout: float | None) -> Work:
    """A function that submits the tasks of a file. All are checked first. A task is submitted after its dependencies.

    Raises `HerdError` for an invalid file, before any connection is made.
    """
    tasks = batch.with_labels(batch.read(file), labels)
    repositories = examine_local({task.task: task.repository for task in tasks})

    async def work(herd: Herd) -> int:
        specs = {task.task: await resuming_spec(herd.connection.request, task.spec, task.earlier) for task in tasks}
        try:
            if repositories:
                specs = await _with_repositories(herd, specs, repositories)
            outcomes = await _submit(herd, specs, wait=wait, timeout=timeout)
        except HerdError as error:
            raise batch.in_file(file, error) if error.problem.code is Code.INVALID_FIELD else error from None
        if wait:
            return _show_outcomes(outcomes, output, batch=tasks[0].batch, timeout=timeout)
        _show_submitted(tasks, outcomes, output)
        return _report_unaccepted(outcomes)

    return work


async def _with_repositories(
    herd: Herd, specs: Mapping[str, TaskSpec], repositories: Mapping[str, LocalRepository]
) -> dict[str, TaskSpec]:
    """Check all specs, then upload their local repositories. Returns the specs with the uploaded repositories."""
    await check_each(herd.check, specs)
    uploaded = await upload_each(herd, repositories)
    return {
        task: spec.model_copy(update={"repository": uploaded[task]}) if task in uploaded else spec
        for task, spec in specs.items()
    }


async def _submit(herd: Herd, specs: Mapping[str, TaskSpec], *, wait: bool, timeout: float | None) -> list[TaskOutcome]:
    with StatusLine("waiting for the spawner to accept the tasks") as activity:
        return await herd.submit_batch(
            specs, wait=wait, timeout=timeout, on_progress=_show_progress(activity) if wait else lambda _: None
        )


def _show_progress(activity: StatusLine) -> Callable[[TaskProgress], None]:
    """A callback that shows in a status line how many tasks have ended."""
    return lambda progress: activity.step(progress.summarize())


def _show_submitted(batch_tasks: Sequence[BatchTask], outcomes: Sequence[TaskOutcome], output: Format) -> None:
    states = {outcome.task: outcome.state for outcome in outcomes}
    document = [
        {
            "name": task.label,
            "task": task.task,
            "depends_on": list(task.spec.depends_on),
            "state": states[task.task],
        }
        for task in batch_tasks
    ]
    rows = [[task.label, task.task, ", ".join(task.spec.depends_on) or None] for task in batch_tasks]
    console.print_list(output, {"batch": batch_tasks[0].batch, "tasks": document}, BATCH_HEADER, rows, name=_task_of)
    if output in {Format.TABLE, Format.WIDE}:
        write_text(f"batch  {batch_tasks[0].batch}")


def _task_of(row: Sequence[object]) -> str:
    return str(row[BATCH_HEADER.index("TASK")])


def _report_unaccepted(outcomes: Sequence[TaskOutcome]) -> int:
    """Report the tasks that were rejected or not accepted in time. Returns 1 if a task was rejected, else 0."""
    rejected = [outcome for outcome in outcomes if outcome.state == REJECTED]
    not_accepted = sum(outcome.state == SUBMITTED for outcome in outcomes)
    for outcome in rejected:
        print_error(f"{outcome.task} was rejected: {outcome.error}")
    if not_accepted:
        print_error(
            f"the spawner has not accepted {pluralize(not_accepted, 'task')} yet; all are stored; see `sandherd doctor`"
        )
    return 1 if rejected else 0


def wait_until_ended(names: Sequence[str], labels: Mapping[str, str], output: Format, timeout: float | None) -> Work:
    """A function that waits until tasks have ended: the named tasks, or all tasks with these labels."""

    async def work(herd: Herd) -> int:
        tasks = [await full_name(herd, name, "task") for name in names]
        with StatusLine("waiting for the tasks") as activity:
            outcomes = await herd.wait_all(*tasks, labels=labels, timeout=timeout, on_progress=_show_progress(activity))
        return _show_outcomes(outcomes, output, timeout=timeout)

    return work


def _show_outcomes(
    outcomes: Sequence[TaskOutcome], output: Format, *, timeout: float | None, batch: str | None = None
) -> int:
    """Show the outcomes of the tasks. Returns 0 if all are completed, else 1."""
    ended, completed = sum(outcome.ended for outcome in outcomes), all_completed(outcomes)
    document = {
        "batch": batch,
        "total": len(outcomes),
        "ended": ended,
        "completed": completed,
        "timed_out": ended < len(outcomes),
        "tasks": outcomes,
    }
    rows = [[outcome.task, outcome.state, outcome.name, outcome.attempt, outcome.error] for outcome in outcomes]
    set_fields = {name: value for name, value in document.items() if value is not None}
    console.print_list(output, set_fields, OUTCOME_HEADER, rows)
    if batch and output in {Format.TABLE, Format.WIDE}:
        write_text(f"batch  {batch}")
    if ended < len(outcomes):
        print_error(f"{len(outcomes) - ended} of {pluralize(len(outcomes), 'task')} not ended after {timeout:g} s")
    return 0 if completed else 1


def cancel_all(labels: Mapping[str, str], reason: str, output: Format) -> Work:
    """A function that cancels all tasks with these labels that have not ended."""

    async def work(herd: Herd) -> int:
        results = await herd.cancel_all(labels=labels, reason=reason)
        failed = {task: error.line for task, error in results.items() if error is not None}
        cancelled = [task for task in results if task not in failed]
        if output.is_json:
            errors = [{"task": task, "error": error} for task, error in failed.items()]
            console.print_document(output, {"cancelled": cancelled, "failed": errors})
        elif output is Format.NAME:
            for task in cancelled:
                write_text(task)
        else:
            write_text(f"cancelled {len(cancelled)} of {pluralize(len(results), 'task')} that had not ended")
        for task, error in list(failed.items())[:_MAX_LISTED_ERRORS]:
            print_error(f"{task}: {error}")
        if failed:
            print_error(f"{len(failed)} of {pluralize(len(results), 'task')} not cancelled")
        return 1 if failed else 0

    return work
