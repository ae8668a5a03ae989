"""`sandherd files` and `diff`: what a task has left."""

import typer

from sandherd.cli.options import Format, NamelessOutput, Output, Project, TaskName, example

_TASK = "task-01kahc5x3tf8b9n2m4r6v8w0ya"
FILES_EXAMPLE = example(f"sandherd files {_TASK}", f"sandherd cp {_TASK}:out/report.html .")
DIFF_EXAMPLE = example(f"sandherd diff {_TASK}")


def files(ctx: typer.Context, task: TaskName, project: Project = None, output: Output = Format.TABLE) -> int:
    """List the files that a task has left: the work tree that its last attempt has stored.

    It is stored if the task was submitted with --dir or --keep-work, or has failed. `sandherd cp TASK:PATH DST` copies
    from it.
    """
    from sandherd.cli import task_results
    from sandherd.cli.session import talk

    return talk(ctx, task_results.files(task, output), project=project)


def diff(ctx: typer.Context, task: TaskName, project: Project = None, output: NamelessOutput = Format.TABLE) -> int:
    """Show how the files that a task has left differ from those of its --dir, or its branch from its base.

    Written to a pipe or a file, it is a patch for `git apply`. Git directories are left out. Needs git on this machine.
    """
    from sandherd.cli import task_results
    from sandherd.cli.session import talk

    return talk(ctx, task_results.diff(task, output), project=project)
