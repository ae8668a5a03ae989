"""`sandherd history`: shows and changes the retention of events, restores archived days, and verifies the tables.

All commands except `verify` need an operator's credential.
"""

from typing import TYPE_CHECKING, Annotated

import typer

from sandherd.cli.completion import all_names, project_names
from sandherd.cli.options import Format, NamelessOutput, Project, checked_sandbox, example, group

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
    """Show the days of the history of all projects: their sizes, when they are dropped, and which are held.

    The number of events is an estimate by Postgres. Days are in UTC, by the times in the ids of events.
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
    reason: Annotated[
        str, typer.Option("--reason", metavar="TEXT", help="Reason, shown by `sandherd history status`.")
    ],
    task: Task = None,
    output: NamelessOutput = Format.TABLE,
) -> int:
    """Hold all days with events of a project or a task: they are not dropped until `history release`.

    The hold takes effect before the command returns, and also covers events that are stored later. Repeating the
    command changes the reason. An unknown project or task without stored events is refused.
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
    """Remove a hold. Days whose retention has expired are then dropped within minutes.

    The hold of a project does not include the holds of its tasks: each is removed by a command of its own. The exit
    status is 1 if there is no such hold.
    """
    from sandherd.cli.herd_session import run_as_operator
    from sandherd.cli.render.retention import show_release

    async def work(herd: "Herd") -> int:
        return show_release(name, task, released=await herd.release_history(task), output=output)

    return run_as_operator(ctx, work, project=name, create=True)


@app.command("archives", epilog=example("sandherd history archives", "sandherd history archives -o json"))
def archives(ctx: typer.Context, output: NamelessOutput = Format.TABLE) -> int:
    """List the days in the archive by project, newest first. Days are in UTC, by the times in the ids of events."""
    from sandherd.cli.herd_session import run_as_operator
    from sandherd.cli.render.retention import show_archives

    async def work(herd: "Herd") -> int:
        show_archives([day async for day in herd.history_archives()], output)
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
    day: Annotated[str, typer.Argument(metavar="DAY", help="The day, in UTC: 2026-08-21.", callback=_checked_day)],
    *,
    project: Annotated[
        str | None,
        typer.Option(
            "--project",
            metavar="PROJECT",
            help="Only the events of this project [default: of all projects].",
            callback=lambda name: None if name is None else _checked_project(name),
            autocompletion=project_names,
        ),
    ] = None,
    days: Annotated[
        int,
        typer.Option(
            "--days", metavar="DAYS", help="Number of days after which the day may be dropped again.", min=1, max=3650
        ),
    ] = 7,
    output: NamelessOutput = Format.TABLE,
) -> int:
    """Load a day from the archive into the history, and wait until it is complete.

    The digests of its files are verified first. Events that are in the history already are not loaded twice. If this
    command is interrupted, event-ingest continues to restore the day. The exit status is 1 if this is not possible.
    """
    from datetime import date

    from sandherd.cli.herd_session import command_context, run_as_operator
    from sandherd.cli.history_restore import wait_until_restored
    from sandherd.cli.render.retention import show_restore
    from sandherd.client.context import holder

    credentials = command_context(ctx, project=project, role="operator").credentials
    by = holder(credentials).name if credentials else None

    async def work(herd: "Herd") -> int:
        requested = await herd.restore_history(date.fromisoformat(day), days=days, by=by)
        return show_restore(await wait_until_restored(herd, requested), output)

    return run_as_operator(ctx, work, project=project, create=True)


@app.command("verify", epilog=example("sandherd history verify", "sandherd history verify -o json"))
def verify(
    ctx: typer.Context,
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[SANDBOX]",
            help="One sandbox, with its task [default: all of the project].",
            callback=checked_sandbox,
            autocompletion=all_names,
        ),
    ] = None,
    project: Project = None,
    output: NamelessOutput = Format.TABLE,
) -> int:
    """Compare the tables of tasks, sandboxes, messages, approvals and sources with the events, and list differences.

    The exit status is 1 if there is a difference. `sandherd audit` checks whether events are missing.
    """
    from sandherd.cli.herd_session import run_with_herd
    from sandherd.cli.render import verification

    async def work(herd: "Herd") -> int:
        return await verification.show(herd, name, output)

    return run_with_herd(ctx, work, project=project, activity="verifying")
