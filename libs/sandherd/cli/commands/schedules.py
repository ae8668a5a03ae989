"""`sandherd schedules`: create, list, show, pause, resume, trigger, delete."""

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from sandherd.cli.command_templates import show_change
from sandherd.cli.completion import schedule_names
from sandherd.cli.options import CreateProject, Format, Output, Project, example, group
from sandherd.cli.render.table import Column

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sandherd.client.herd import Herd
    from sandherd.contracts.requests import ScheduleRun, ScheduleView

app = group("Schedules of tasks: create, list, show, pause, resume, trigger, delete.", "sandherd schedules list")
HEADER = (
    "NAME",
    Column("CRON", 2, whole=True),
    Column("TIME ZONE", 4),
    "PAUSED",
    "NEXT",
    Column("LAST", 3, whole=True),
    Column("RUNNING", 5),
    Column("TEXT", 1, cut=True),
)
RUN_HEADER = ("DUE", Column("OUTCOME", whole=True), "TASK", Column("TIMES", 1), Column("REASON", below=True))


class OverlapPolicy(StrEnum):
    """The policy for a due time at which an earlier task has not ended; `contracts.schedules.Overlap`."""

    SKIP = "skip"
    ALLOW = "allow"
    CANCEL_OTHER = "cancel_other"
    BUFFER_ONE = "buffer_one"


def _checked_schedule(name: str) -> str:
    from sandherd.client.schedules import checked_schedule_name

    return checked_schedule_name(name)


Name = Annotated[
    str,
    typer.Argument(
        metavar="NAME",
        help="Up to 40 lower-case letters, digits and dashes.",
        callback=_checked_schedule,
        autocompletion=schedule_names,
    ),
]


@app.command(
    "create",
    epilog=example(
        'sandherd schedules create nightly --cron "0 3 * * *" --time-zone Europe/Berlin task.yaml',
        'sandherd schedules create tidy --cron "0 9 * * MON-FRI" --overlap buffer_one -- "Tidy up" --harness claude '
        "--secret ANTHROPIC_API_KEY=anthropic-key",
        'sandherd schedules create ping --cron "*/10 * * * *" --catch-up 5m -- "Ping" -- sh -c "echo ping"',
    ),
)
def create_schedule(  # noqa: PLR0913  # one parameter per option
    ctx: typer.Context,
    name: Name,
    source: Annotated[
        list[str],
        typer.Argument(metavar="FILE|-- OPTIONS…", help="File with one task, or the arguments of `sandherd run`."),
    ],
    *,
    cron: Annotated[
        str,
        typer.Option("--cron", metavar="TIMES", help="Minute, hour, day of the month, month, day of the week."),
    ],
    time_zone: Annotated[
        str, typer.Option("--time-zone", metavar="ZONE", help="Time zone of --cron, such as Europe/Berlin.")
    ] = "UTC",
    overlap: Annotated[
        OverlapPolicy, typer.Option("--overlap", help="Policy for an earlier task that has not ended.")
    ] = OverlapPolicy.SKIP,
    catch_up: Annotated[
        str,
        typer.Option("--catch-up", metavar="TIME", help="Maximum delay of a start after an outage: 5m, 1h, 1d."),
    ] = "1h",
    replace: Annotated[bool, typer.Option("--replace", help="Replace a schedule of this name.")] = False,
    project: Project = None,
    create: CreateProject = False,
    output: Output = Format.TABLE,
) -> int:
    """Create a schedule, which starts a task at each due time of a cron expression, at most once.

    The task is in a file for `sandherd tasks submit`, or is given by the arguments of `sandherd run`. It can have only
    named secrets (`--secret`, see `sandherd secrets`).

    If an earlier task has not ended: skip starts no task, allow starts another task, cancel_other cancels the earlier
    tasks first, buffer_one starts one task when the earlier task has ended.
    """
    from sandherd.cli.herd_session import command_context
    from sandherd.cli.parse.units import seconds
    from sandherd.cli.scheduled_task import scheduled_task
    from sandherd.client.context import holder

    task, catch_up_seconds = scheduled_task(source), seconds(catch_up, "--catch-up")
    credentials = command_context(ctx, project=project).credentials
    by = holder(credentials).name if credentials else None

    async def work(herd: "Herd") -> "ScheduleView":
        return await herd.create_schedule(
            name,
            await task.spec(herd),
            cron=cron,
            time_zone=time_zone,
            overlap=overlap.value,
            catch_up_seconds=catch_up_seconds,
            replace=replace,
            by=by,
        )

    return show_change(ctx, work, _next_time_text, project=project, output=output, create=create)


@app.command("list", epilog=example("sandherd schedules list", "sandherd schedules list -o json"))
def list_schedules(ctx: typer.Context, project: Project = None, output: Output = Format.TABLE) -> int:
    """List the project's schedules, with their next due time and the outcome of the last due time."""
    from sandherd.cli.herd_session import run_with_herd
    from sandherd.cli.render.console import print_list

    async def work(herd: "Herd") -> int:
        schedules = await herd.schedules()
        print_list(output, schedules, HEADER, [_row(view) for view in schedules.schedules])
        return 0

    return run_with_herd(ctx, work, project=project)


@app.command("show", epilog=example("sandherd schedules show nightly"))
def show_schedule(ctx: typer.Context, name: Name, project: Project = None, output: Output = Format.TABLE) -> int:
    """Show a schedule: its policies, next due times, unfinished tasks, and the outcomes of the last due times."""
    from sandherd.cli.herd_session import run_with_herd
    from sandherd.cli.render.console import print_document
    from sandherd.client.terminal_text import write_text

    async def work(herd: "Herd") -> int:
        schedule = await herd.schedule(name)
        if output.is_json:
            print_document(output, schedule)
        elif output is Format.NAME:
            write_text(schedule.name)
        else:
            _show(schedule, wide=output is Format.WIDE)
        return 0

    return run_with_herd(ctx, work, project=project)


@app.command("pause", epilog=example("sandherd schedules pause nightly"))
def pause_schedule(ctx: typer.Context, name: Name, project: Project = None, output: Output = Format.TABLE) -> int:
    """Pause a schedule: it starts no tasks until it is resumed. Running tasks are not affected."""
    return show_change(ctx, lambda herd: herd.pause_schedule(name), _next_time_text, project=project, output=output)


@app.command("resume", epilog=example("sandherd schedules resume nightly"))
def resume_schedule(ctx: typer.Context, name: Name, project: Project = None, output: Output = Format.TABLE) -> int:
    """Resume a paused schedule. Due times while it was paused are not caught up."""
    return show_change(ctx, lambda herd: herd.resume_schedule(name), _next_time_text, project=project, output=output)


@app.command("trigger", epilog=example("sandherd schedules trigger nightly"))
def trigger_schedule(ctx: typer.Context, name: Name, project: Project = None, output: Output = Format.TABLE) -> int:
    """Start a task of a schedule now, and print its name. The overlap policy and a pause are ignored."""
    return show_change(
        ctx, lambda herd: herd.trigger_schedule(name), lambda view: str(view.task), project=project, output=output
    )


@app.command("delete", epilog=example("sandherd schedules delete nightly"))
def delete_schedule(ctx: typer.Context, name: Name, project: Project = None, output: Output = Format.TABLE) -> int:
    """Delete a schedule. Its tasks are not affected."""
    return show_change(
        ctx,
        lambda herd: herd.delete_schedule(name),
        lambda view: f"schedule {view.name} is deleted",
        project=project,
        output=output,
    )


def _next_time_text(view: "ScheduleView") -> str:
    from sandherd.cli.render.console import cell

    if view.paused:
        return f"schedule {view.name} is paused"
    return f"schedule {view.name} is due next at {cell(view.next_times[0])}"


def _row(view: "ScheduleView") -> list[object]:
    last = f"{view.runs[0].outcome} {view.runs[0].task or ''}".strip() if view.runs else None
    next_time = view.next_times[0] if view.next_times else None
    text = " ".join(view.text.split())
    paused = "yes" if view.paused else "no"
    return [view.name, view.cron, view.time_zone, paused, next_time, last, ", ".join(view.running) or None, text]


def _show(view: "ScheduleView", *, wide: bool) -> None:
    from sandherd.cli.render.console import cell, print_facts, print_table
    from sandherd.client.terminal_text import write_text
    from sandherd.contracts.durations import duration_text

    omitted = {"next_times", "running", "runs", "task", "catch_up_seconds"}
    facts = {name.replace("_", " "): value for name, value in dict(view).items() if name not in omitted}
    facts |= {"catch up": f"within {duration_text(view.catch_up_seconds)} of the due time"}
    print_facts(facts | {"next": ", ".join(map(cell, view.next_times)), "running": ", ".join(view.running)})
    write_text()
    print_table(RUN_HEADER, _run_rows(view.runs), wide=wide)


def _run_rows(runs: "Sequence[ScheduleRun]") -> list[list[object]]:
    return [
        [
            run.due_at,
            f"{run.outcome} (triggered)" if run.triggered else run.outcome,
            run.task,
            run.due_times,
            run.reason,
        ]
        for run in runs
    ]
