"""`sandherd tasks wait`: waits until tasks have ended."""

from typing import Annotated

import typer

from sandherd.cli.completion import task_names
from sandherd.cli.options import Format, Output, Project, example
from sandherd.cli.parse.list_options import Batch, LabelFilter, WaitTimeout, waiting_seconds

WAIT_EXAMPLE = example(
    "sandherd tasks wait task-01kahc5x3tf8b9n2m4r6v8w0ya build-1",
    "sandherd tasks wait --batch batch-01kahc5x3tf8b9n2m4r6v8w0ya --timeout 2h -o json",
    "sandherd tasks wait --label team=web",
)


def _checked_tasks(names: list[str] | None) -> list[str] | None:
    from sandherd.client.errors import checked_name

    return None if names is None else [checked_name(name, "task") for name in names]


def wait_tasks(
    ctx: typer.Context,
    tasks: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[TASK]…",
            help="Names of tasks, or their unique beginnings.",
            callback=_checked_tasks,
            autocompletion=task_names,
        ),
    ] = None,
    *,
    label: LabelFilter = None,
    batch: Batch = None,
    timeout: WaitTimeout = None,
    project: Project = None,
    output: Output = Format.TABLE,
) -> int:
    """Wait until tasks have ended, and show their outcomes. A terminal shows how many have ended meanwhile.

    --label and --batch select the tasks that have the label when the command starts. For an unknown task the command
    waits up to 30 s while the spawner has unread commands, because the task may just have been submitted. The exit
    status is 0 if all tasks are completed, and 1 if one failed, was cancelled, or has not ended within --timeout.
    """
    from sandherd.cli.herd_session import run_with_herd
    from sandherd.cli.parse.labels import required_labels
    from sandherd.cli.task_batches import wait_until_ended

    labels = required_labels(tasks or [], label or [], batch)
    return run_with_herd(ctx, wait_until_ended(tasks or [], labels, output, waiting_seconds(timeout)), project=project)
