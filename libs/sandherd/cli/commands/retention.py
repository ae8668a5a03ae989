"""`sandherd history`: what is dropped when, what is archived, and whether the tables are right.

All but `verify` take an operator's credential.
"""

from typing import TYPE_CHECKING, Annotated

import typer

from sandherd.cli.completion import all_names, project_names
from sandherd.cli.options import Format, NamelessOutput, Project, example, group, safe_sandbox

if TYPE_CHECKING:
    from sandherd.client.herd import Herd

app = group("The history: when its days are dropped; hold, release and restore events.", "sandherd history status")
_TASK = "task-01k2w0p6x8e3mb1y9c4hqn5dzr"


def _checked_project(name: str) -> str:
    from sandherd.client.errors import checked_name

    return checked_name(name, "project")


def _checked_task(name: str | None) -> str | None:
    from sandherd.client.errors import checked_name

    return None if name is None else checked_name(name, "task")


def _checked_day(text: str) -> str:
    from datetime import date

    try:
        return date.fromisoformat(text).isoformat()
    except ValueError:
        raise typer.BadParameter("a day is written as 2026-08-21") from None


Name = Annotated[
    str, typer.Argument(metavar="PROJECT", help="The project.", callback=_checked_project, autocompletion=project_names)
]
Task = Annotated[
    str | None,
    typer.Option(
        "--task", metavar="TASK", help="Only the events of this task and its sandboxes.", callback=_checked_task
    ),
]


@app.command("status", epilog=example("sandherd history status", "sandherd history status -o json"))
def status(ctx: typer.Context, output: NamelessOutput = Format.TABLE) -> int:
    """Show the days of the history with their sizes, when each is dropped, and what is held, of all projects.

    The number of events is the estimate of Postgres. A day is of UTC and of the ids of events.
    """
    from sandherd.cli.herd_session import run_as_operator
    from sandherd.cli.render.retention import show_status

    async def work(herd: "Herd") -> int:
        show_status(await herd.history_status(), output)
        return 0

    return run_as_operator(ctx, work)


@app.command(
    "hold",
    epilog=example(
        "sandherd history hold web --reason 'audit of 2026'",
        f"sandherd history hold web --task {_TASK} --reason 'incident 42'",
    ),
)
def hold(
    ctx: typer.Context,
    name: Name,
    *,
    reason: Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why, for `sandherd history status`.")],
    task: Task = None,
    output: NamelessOutput = Format.TABLE,
) -> int:
    """Prevent the drop of all days that have events of a project, or of one of its tasks, until they are released.

    In effect when the command ends, for all that is stored then. Repeated, it has the new reason. A project or
    task that is unknown and has no stored events is refused.
    """
    from sandherd.cli.herd_session import command_context, run_as_operator
    from sandherd.cli.render.retention import show_hold
    from sandherd.client.context import holder

    credentials = command_context(ctx, project=name, role="operator").credentials
    by = holder(credentials).name if credentials else None

    async def work(herd: "Herd") -> int:
        show_hold(await herd.hold_history(reason, task=task, by=by), output)
        return 0

    return run_as_operator(ctx, work, project=name)


@app.command("release", epilog=example("sandherd history release web", f"sandherd history release web --task {_TASK}"))
def release(ctx: typer.Context, name: Name, *, task: Task = None, output: NamelessOutput = Format.TABLE) -> int:
    """Remove a hold. The days that are due by then are dropped within minutes.

    The hold of a project and those of its tasks are removed one by one. Without such a hold the exit status is 1.
    """
    from sandherd.cli.herd_session import run_as_operator
    from sandherd.cli.render.retention import show_release

    async def work(herd: "Herd") -> int:
        return show_release(name, task, released=await herd.release_history(task), output=output)

    return run_as_operator(ctx, work, project=name, create=True)


@app.command("archives", epilog=example("sandherd history archives", "sandherd history archives -o json"))
def archives(ctx: typer.Context, output: NamelessOutput = Format.TABLE) -> int:
    """List the days that are in the archive, by project, the newest first. A day is of UTC and of the ids of events."""
    from sandherd.cli.herd_session import run_as_operator
    from sandherd.cli.render.retention import show_archives

    async def work(herd: "Herd") -> int:
        show_archives([one async for one in herd.history_archives()], output)
        return 0

    return run_as_operator(ctx, work)


@app.command(
    "restore",
    epilog=example(
        "sandherd history restore 2026-08-21", "sandherd history restore 2026-08-21 --project web --days 30"
    ),
)
def restore(
    ctx: typer.Context,
    day: Annotated[str, typer.Argument(metavar="DAY", help="The day, of UTC: 2026-08-21.", callback=_checked_day)],
    *,
    project: Annotated[
        str | None,
        typer.Option(
            "--project",
            metavar="PROJECT",
            help="Only the events of this project [default: of all].",
            callback=lambda name: None if name is None else _checked_project(name),
            autocompletion=project_names,
        ),
    ] = None,
    days: Annotated[
        int,
        typer.Option(
            "--days", metavar="DAYS", help="Number of days after which it may be dropped again.", min=1, max=3650
        ),
    ] = 7,
    output: NamelessOutput = Format.TABLE,
) -> int:
    """Load a day from the archive into the history, and wait until it is complete.

    Its files are compared with their digests first. Events that are in the history already are not loaded twice. An
    interrupted command changes nothing: event-ingest restores the day on its own. The exit status is 1 if it can't.
    """
    from datetime import date

    from sandherd.cli.herd_session import command_context, run_as_operator
    from sandherd.cli.history_restore import wait_restored
    from sandherd.cli.render.retention import show_restore
    from sandherd.client.context import holder

    credentials = command_context(ctx, project=project, role="operator").credentials
    by = holder(credentials).name if credentials else None

    async def work(herd: "Herd") -> int:
        requested = await herd.restore_history(date.fromisoformat(day), days=days, by=by)
        return show_restore(await wait_restored(herd, requested), output)

    return run_as_operator(ctx, work, project=project, create=True)


@app.command("verify", epilog=example("sandherd history verify", "sandherd history verify -o json"))
def verify(
    ctx: typer.Context,
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[SANDBOX]",
            help="One sandbox, with its task [default: all of the project].",
            callback=safe_sandbox,
            autocompletion=all_names,
        ),
    ] = None,
    project: Project = None,
    output: NamelessOutput = Format.TABLE,
) -> int:
    """Compare the tables of tasks, sandboxes, messages, approvals and sources with the events, and list differences.

    The exit status is 1 if there is one. `sandherd audit` checks whether events are missing.
    """
    from sandherd.cli.herd_session import run_with_herd
    from sandherd.cli.render import verification

    async def work(herd: "Herd") -> int:
        return await verification.show(herd, name, output)

    return run_with_herd(ctx, work, project=project, activity="verifying")
