"""`sandherd tasks`: list, get, submit, cancel, retry."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sandherd.client.cli.listing import ask_for, show_list, show_one
from sandherd.client.cli.options import (
    Cursor,
    Format,
    Limit,
    Output,
    Past,
    Project,
    SecretEnv,
    TaskName,
    example,
    group,
)
from sandherd.contracts.states import TaskState

if TYPE_CHECKING:
    from sandherd.contracts.requests import TaskView

app = group("Tasks: list, get, submit, cancel, retry.", "sandherd tasks list")
HEADER = ("TASK", "STATE", "PRIORITY", "ATTEMPT", "SANDBOX", "SUBMITTED", "WAITS FOR", "TEXT")
TEXT_WIDTH = 60


@app.command("list", epilog=example("sandherd tasks list --state pending", "sandherd tasks list --past -o json"))
def list_tasks(  # one parameter per option
    ctx: typer.Context,
    *,
    state: Annotated[TaskState | None, typer.Option("--state", help="Only tasks in this state.")] = None,
    past: Past = False,
    limit: Limit = 100,
    cursor: Cursor = None,
    project: Project = None,
    output: Output = Format.TABLE,
) -> int:
    """Tasks, newest first: those that live, and those that ended lately.

    Of one that is pending it says what it waits for; an attempt is shown with how many there may be.
    """
    return show_list(
        ctx,
        lambda herd: herd.tasks(state=state, limit=limit, cursor=cursor, past=past),
        _row,
        key="tasks",
        header=HEADER,
        project=project,
        output=output,
    )


@app.command("get", epilog=example("sandherd tasks get task-01kahc5x3tf8b9n2m4r6v8w0ya"))
def get_task(ctx: typer.Context, task: TaskName, project: Project = None, output: Output = Format.TABLE) -> int:
    """One task as it stands, or as it stood last."""
    return show_one(ctx, lambda herd: herd.task(task), project=project, output=output)


@app.command("submit", epilog=example("sandherd tasks submit examples/batch/tasks.yaml"))
def submit_tasks(
    ctx: typer.Context,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A YAML or JSON file with a list `tasks`.")],
    project: Project = None,
    output: Output = Format.TABLE,
) -> int:
    """Give several tasks at once, which may wait for each other.

    Each has a `name`, `text`, `argv`, and any field of a task spec; `depends_on` names tasks of the file, `after` tasks
    that were submitted before, and `resume` one of those whose session it goes on from. Nothing is sent if one of them
    is wrong, missing, or waits for itself in a circle.
    """
    from sandherd.client.cli.several import submit
    from sandherd.client.cli.talking import talk

    return talk(ctx, submit(file, output), project=project)


@app.command("cancel", epilog=example('sandherd tasks cancel task-01kahc5x3tf8b9n2m4r6v8w0ya --reason "not needed"'))
def cancel_task(
    ctx: typer.Context,
    task: TaskName,
    reason: Annotated[str, typer.Option("--reason", help="Why; it is kept with the task.")] = "",
    project: Project = None,
    output: Output = Format.TABLE,
) -> int:
    """Stop a task, wherever it is."""
    return ask_for(
        ctx,
        lambda herd: herd.task(task),
        lambda herd: herd.cancel(task, reason=reason),
        what=("cancel", "task", task),
        project=project,
        output=output,
    )


@app.command(
    "retry",
    epilog=example(
        "sandherd tasks retry task-01kahc5x3tf8b9n2m4r6v8w0ya",
        "sandherd tasks retry task-01kahc5x3tf8b9n2m4r6v8w0ya --secret-env ANTHROPIC_API_KEY",
    ),
)
def retry_task(
    ctx: typer.Context,
    task: TaskName,
    secret_env: SecretEnv = None,
    project: Project = None,
    output: Output = Format.TABLE,
) -> int:
    """Try a task that has failed or was cancelled once more, in a new sandbox, whatever its error was.

    Values of `--secret-env` are stored for an hour after its end. Later they have to be given again: on a terminal
    they are asked for, else with `--secret-env`. Named secrets (`sandherd secrets`) are read anew each time.
    """
    from sandherd.client.cli.changing import changed
    from sandherd.client.cli.secret_input import retry_with_secrets
    from sandherd.client.cli.spec import variables

    given = variables(secret_env or [], os.environ)
    return changed(
        ctx,
        lambda herd: retry_with_secrets(herd, task, given),
        lambda view: f"{task} is {view.state} again, attempt {view.attempt} of {view.max_attempts}",
        project=project,
        output=output,
    )


def _row(task: "TaskView") -> list[object]:
    text = " ".join(task.text.split())
    text = text if len(text) <= TEXT_WIDTH else f"{text[: TEXT_WIDTH - 1]}…"
    attempt = f"{task.attempt}/{task.max_attempts}"
    return [task.task, task.state, task.priority, attempt, task.sandbox, task.submitted_at, task.waits_for, text]
