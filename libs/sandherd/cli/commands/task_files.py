"""`sandherd files` and `diff`: show the files that a task has stored, and their changes."""

from typing import Annotated

import typer

from sandherd.cli.options import Format, NamelessOutput, Output, Project, SandboxOrTask, TaskName, example

_TASK = "task-01kahc5x3tf8b9n2m4r6v8w0ya"
FILES_EXAMPLE = example(
    f"sandherd files {_TASK}", f"sandherd cp {_TASK}:out/report.html .", f"sandherd files {_TASK} --versions"
)
DIFF_EXAMPLE = example(f"sandherd diff {_TASK}")


def files(
    ctx: typer.Context,
    task: SandboxOrTask,
    *,
    versions: Annotated[
        bool,
        typer.Option("--versions", help="List the changes of files in a sandbox, or in the last sandbox of a task."),
    ] = False,
    path: Annotated[
        str | None, typer.Option("--path", metavar="PATH", help="Only this file; implies --versions.")
    ] = None,
    number: Annotated[
        int | None, typer.Option("--version", metavar="N", help="Show this version of the file at --path.", min=1)
    ] = None,
    project: Project = None,
    output: Output = Format.TABLE,
) -> int:
    """List the result of a task: the files in the work tree that its last attempt has stored.

    It is stored if the task was submitted with --dir or --keep-work, or has failed. `sandherd cp TASK:PATH DST` copies
    from it. Versions come from the agent's events, which have the content of files that the agent created, and
    diffs of other files.
    """
    from sandherd.cli import session_replay, task_results
    from sandherd.cli.herd_session import run_with_herd

    if number is not None and path is None:
        raise typer.BadParameter("--version needs --path")
    if versions or path is not None:
        return run_with_herd(ctx, session_replay.versions(task, path, number, output), project=project)
    return run_with_herd(ctx, task_results.files(task, output), project=project)


def diff(ctx: typer.Context, task: TaskName, project: Project = None, output: NamelessOutput = Format.TABLE) -> int:
    """Show the diff between the --dir of a task and its result, or between the base and the branch of a task.

    In a pipe or a file, it is a patch for `git apply`. Git directories are left out. This needs git on this machine.
    """
    from sandherd.cli import task_results
    from sandherd.cli.herd_session import run_with_herd

    return run_with_herd(ctx, task_results.diff(task, output), project=project)
