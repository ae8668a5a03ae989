"""`sandherd tasks`: list, get, submit, wait, cancel, retry."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sandherd.cli.command_templates import send_command, show_list, show_one
from sandherd.cli.commands.task_wait import WAIT_EXAMPLE, wait_tasks
from sandherd.cli.options import (
    CreateProject,
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
from sandherd.cli.parse.list_options import (
    Batch,
    LabelFilter,
    NewLabels,
    OptionalTaskName,
    SinceRequest,
    Sort,
    SortBy,
    TaskStates,
    WaitTimeout,
    Watch,
    list_filter,
    waiting_seconds,
)
from sandherd.cli.render.table import Column

if TYPE_CHECKING:
    from sandherd.client.herd import Herd
    from sandherd.contracts.requests import TaskView

app = group("Tasks: list, get, submit, wait, cancel, retry.", "sandherd tasks list")
HEADER = (
    "TASK",
    "STATE",
    Column("NAME", cut=True),
    Column("PRIORITY", 6),
    Column("ATTEMPT", 3),
    Column("SANDBOX", 5),
    Column("SUBMITTED", 4),
    Column("WAITS FOR", 1, cut=True),
    Column("BATCH", 7),
    Column("TEXT", 2, cut=True),
)


@app.command(
    "list",
    epilog=example(
        "sandherd tasks list --state pending --state running",
        "sandherd tasks list --label team=web --since 2h --sort state",
        "sandherd tasks list --batch batch-01kahc5x3tf8b9n2m4r6v8w0ya --watch",
        "sandherd tasks list --past -o json",
    ),
)
def list_tasks(  # noqa: PLR0913  # one parameter per option
    ctx: typer.Context,
    *,
    state: TaskStates = None,
    label: LabelFilter = None,
    batch: Batch = None,
    since: SinceRequest = None,
    sort: SortBy = Sort.NEWEST,
    watch: Watch = False,
    past: Past = False,
    limit: Limit = 100,
    cursor: Cursor = None,
    project: Project = None,
    output: Output = Format.TABLE,
) -> int:
    """List live and recently ended tasks. If several conditions are given, a task has to meet all of them.

    NAME is the name of the task in the file of its batch. WAITS FOR is the reason why a pending task waits, or the
    approval that a running task needs from a user. ATTEMPT is the attempt and the maximum number of attempts; for an
    ended task it is only the number of attempts. A narrow terminal omits columns; `-o wide` shows all.
    """
    filters = list_filter(state or [], label or [], batch, since, sort)
    return show_list(
        ctx,
        lambda herd: herd.tasks(limit=limit, cursor=cursor, past=past, **filters),
        _row,
        key="tasks",
        header=HEADER,
        project=project,
        output=output,
        watch=("task", "sandbox", "approval") if watch else (),
    )


app.command("wait", epilog=WAIT_EXAMPLE)(wait_tasks)


@app.command("get", epilog=example("sandherd tasks get task-01kahc5x3tf8b9n2m4r6v8w0ya"))
def get_task(ctx: typer.Context, task: TaskName, project: Project = None, output: Output = Format.TABLE) -> int:
    """Show one task in its present or final state."""
    from sandherd.cli.name_prefixes import with_name

    find = with_name(task, "task", lambda herd, name: herd.task(name))
    return show_one(ctx, find, key="task", project=project, output=output, show=_show_details)


async def _show_details(herd: "Herd", view: "TaskView") -> None:
    from sandherd.cli.render.details import show, task_facts
    from sandherd.client.tasks.overview import cost_of

    show(task_facts(view, await cost_of(herd.connection.request, view)))


@app.command(
    "submit",
    epilog=example(
        "sandherd tasks submit examples/batch/tasks.yaml",
        "sandherd tasks submit examples/batch/tasks.yaml --label night=2026-11-20 --wait --timeout 2h",
        "sandherd tasks submit examples/batch/matrix.yaml",
    ),
)
def submit_tasks(
    ctx: typer.Context,
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="YAML or JSON file with a list `tasks`; - is standard input.")
    ],
    *,
    label: NewLabels = None,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until all have ended, as `sandherd tasks wait`.")] = False,
    timeout: WaitTimeout = None,
    project: Project = None,
    create: CreateProject = False,
    output: Output = Format.TABLE,
) -> int:
    """Submit the tasks of a file together, as a batch. They may depend on each other.

    docs/task-files.md shows every field, also those of `limits`, `retry` and `harness`: for example
    `limits: {memory_mb: 4096, cores: 2}` and `harness: {kind: claude, max_turns: 40}`.

    A task has a `name`, `text`, `argv`, and any field of a task spec. `depends_on` names tasks of the file, `after`
    tasks that were submitted before, and `resume` such a task whose session is continued. `repository` has the `url` of
    a git repository or the `path` of a local one, and `base`, `ticket`, `branch`, `join`, `push`, `commit_rest` and
    `pull_request`. A task with a `matrix` is submitted once for each combination of values. Nothing is sent if a task
    is invalid, missing, or part of a dependency cycle.

    Prints the name of the batch, for `--batch` of `tasks list`, `wait` and `cancel`. Returns when the spawner has
    accepted or rejected every task. The exit status is 1 if a task is rejected, and with `--wait` if one does not
    complete.
    """
    from sandherd.cli.herd_session import run_with_herd
    from sandherd.cli.parse.labels import new_labels
    from sandherd.cli.task_batches import submit_batch

    work = submit_batch(file, output, labels=new_labels(label or []), wait=wait, timeout=waiting_seconds(timeout))
    return run_with_herd(ctx, work, project=project, create=create)


@app.command(
    "cancel",
    epilog=example(
        'sandherd tasks cancel task-01kahc5x3tf8b9n2m4r6v8w0ya --reason "not needed"',
        "sandherd tasks cancel --label team=web",
        "sandherd tasks cancel --batch batch-01kahc5x3tf8b9n2m4r6v8w0ya",
    ),
)
def cancel_task(
    ctx: typer.Context,
    task: OptionalTaskName = None,
    *,
    label: LabelFilter = None,
    batch: Batch = None,
    reason: Annotated[str, typer.Option("--reason", help="Reason, stored with the task.")] = "",
    project: Project = None,
    output: Output = Format.TABLE,
) -> int:
    """Cancel a task, or all unfinished tasks with a label or of a batch, and stop their agents.

    The exit status is 1 if a task could not be cancelled. It is 0 if all tasks of a label or batch have ended before.
    """
    from sandherd.cli.parse.labels import required_labels

    labels = required_labels([task] if task else [], label or [], batch)
    if task is None:
        from sandherd.cli.herd_session import run_with_herd
        from sandherd.cli.task_batches import cancel_all

        return run_with_herd(ctx, cancel_all(labels, reason, output), project=project)
    return send_command(
        ctx,
        lambda herd, name: herd.task(name),
        lambda herd, name: herd.cancel(name, reason=reason),
        target=("cancel", "task", task),
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
    """Retry a failed or cancelled task in a new sandbox, whatever its error was.

    Values of `--secret-env` are stored for an hour after the end of the task. Later you have to give them again: at a
    prompt on a terminal, or with `--secret-env`. Named secrets (`sandherd secrets`) are read for each attempt.
    """
    from sandherd.cli.command_templates import show_change
    from sandherd.cli.name_prefixes import with_name
    from sandherd.cli.parse.secret_input import retry_with_secrets
    from sandherd.cli.parse.task_spec import secret_variables

    values = secret_variables(secret_env or [], os.environ)
    return show_change(
        ctx,
        with_name(task, "task", lambda herd, name: retry_with_secrets(herd, name, values)),
        lambda view: f"{view.task} is {view.state} again, attempt {view.attempt} of {view.max_attempts}",
        project=project,
        output=output,
    )


def _row(task: "TaskView") -> list[object]:
    from sandherd.cli.render.details import attempt_number
    from sandherd.contracts.labels import BATCH_LABEL, NAME_LABEL
    from sandherd.contracts.states import TASK_ENDED

    text, attempt = " ".join(task.text.split()), attempt_number(task)
    # For an ended task only the number of attempts is shown: it has no next attempt.
    attempts = attempt if task.state in TASK_ENDED else f"{attempt}/{task.max_attempts}"
    name, batch = task.labels.get(NAME_LABEL), task.labels.get(BATCH_LABEL)
    names, times = [task.task, task.state, name], [task.priority, attempts, task.sandbox, task.submitted_at]
    return [*names, *times, task.waits_for, batch, text]
