"""`sandherd events`, `trajectory`, `logs` and `audit`: show events and output, and check that events are stored."""

from typing import TYPE_CHECKING, Annotated

import typer

from sandherd.cli.completion import all_names
from sandherd.cli.options import (
    Follow,
    Format,
    NamelessOutput,
    Output,
    Project,
    SandboxOrTask,
    checked_sandbox,
    example,
)

if TYPE_CHECKING:
    from sandherd.client.herd import Herd

EVENTS_EXAMPLE = example(
    "sandherd events sbx-01kahc5x3tf8b9n2m4r6v8w0ya --type agent.tool_use --since 10m",
    "sandherd events task-01kahc5x3tf8b9n2m4r6v8w0ya --follow -o json",
)
TRAJECTORY_EXAMPLE = example("sandherd trajectory sbx-01kahc5x3tf8b9n2m4r6v8w0ya")
LOGS_EXAMPLE = example("sandherd logs sbx-01kahc5x3tf8b9n2m4r6v8w0ya --follow")
AUDIT_EXAMPLE = example("sandherd audit", "sandherd audit sbx-01kahc5x3tf8b9n2m4r6v8w0ya -o json")

Kinds = Annotated[
    list[str] | None,
    typer.Option(
        "--type",
        metavar="TYPE",
        help="Only these event types, such as agent.tool_use or agent; repeatable.",
    ),
]
Since = Annotated[
    str | None,
    typer.Option("--since", metavar="WHEN", help="Only events since this time: a duration (10m, 2h) ago, or ISO 8601."),
]


def events(  # one parameter per option
    ctx: typer.Context,
    name: Annotated[
        str,
        typer.Argument(metavar="SANDBOX|TASK", help="Sandbox or task whose events to show.", autocompletion=all_names),
    ],
    *,
    kinds: Kinds = None,
    since: Since = None,
    follow: Follow = False,
    project: Project = None,
    output: NamelessOutput = Format.TABLE,
) -> int:
    """Show the events of a sandbox or task, in the order in which they were stored. As JSON, one event per line.

    Events of one source are in the order in which the source published them. Events of different sources may not be
    sorted by time, because each source has its own clock and may publish late. `sandherd trajectory` sorts by time.
    """
    from dataclasses import replace

    from sandherd.cli.herd_session import run_with_herd
    from sandherd.cli.name_prefixes import full_name
    from sandherd.cli.parse.event_filter import event_filter
    from sandherd.cli.render import history

    filters = event_filter(name, kinds or [], since)
    show = history.follow_events if follow else history.show_events

    async def work(herd: "Herd") -> int:
        resolved = replace(filters, name=await full_name(herd, filters.name, filters.kind))
        return await show(herd, resolved, output)

    return run_with_herd(ctx, work, project=project)


def trajectory(
    ctx: typer.Context, sandbox: SandboxOrTask, project: Project = None, output: NamelessOutput = Format.TABLE
) -> int:
    """Show the timeline of a sandbox.

    The timeline has each step with its time and duration, and edits with their diffs. Heartbeats are only counted.
    """
    from sandherd.cli.herd_session import run_with_herd
    from sandherd.cli.name_prefixes import with_sandbox
    from sandherd.cli.render import history

    show = with_sandbox(sandbox, lambda herd, name: history.trajectory(herd, name, output))
    return run_with_herd(ctx, show, project=project)


def logs(
    ctx: typer.Context,
    sandbox: SandboxOrTask,
    *,
    follow: Follow = False,
    raw: Annotated[bool, typer.Option("--raw", help="Keep all control characters, as the program wrote them.")] = False,
    project: Project = None,
    output: NamelessOutput = Format.TABLE,
) -> int:
    """Show the terminal output of a sandbox, or of the live or last attempt of a task. As JSON, one chunk per line."""
    from sandherd.cli.herd_session import run_with_herd
    from sandherd.cli.name_prefixes import with_sandbox
    from sandherd.cli.render import history

    show = with_sandbox(sandbox, lambda herd, name: history.show_output(herd, name, output, follow=follow, raw=raw))
    return run_with_herd(ctx, show, project=project)


def audit(
    ctx: typer.Context,
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[SANDBOX|TASK]",
            help="One sandbox, or a task with all its sandboxes [default: all].",
            callback=checked_sandbox,
            autocompletion=all_names,
        ),
    ] = None,
    project: Project = None,
    output: Output = Format.TABLE,
) -> int:
    """Check that every published event was stored in the history.

    The exit status is 1 if events are missing.
    """
    from sandherd.cli.herd_session import run_with_herd
    from sandherd.cli.render import history

    return run_with_herd(ctx, lambda herd: history.audit(herd, name, output), project=project, activity="auditing")
