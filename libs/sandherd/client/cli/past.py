"""`sandherd events`, `trajectory`, `logs` and `audit`: what happened, and whether all of it is kept."""

from typing import Annotated

import typer

from sandherd.client.cli.options import Follow, Format, Output, Project, SandboxName, example, safe_sandbox

EVENTS_EXAMPLE = example(
    "sandherd events sbx-01kahc5x3tf8b9n2m4r6v8w0ya --type agent.tool_use --since 10m",
    "sandherd events task-01kahc5x3tf8b9n2m4r6v8w0ya --follow -o json",
)
TRAJECTORY_EXAMPLE = example("sandherd trajectory sbx-01kahc5x3tf8b9n2m4r6v8w0ya")
LOGS_EXAMPLE = example("sandherd logs sbx-01kahc5x3tf8b9n2m4r6v8w0ya --follow")
AUDIT_EXAMPLE = example("sandherd audit", "sandherd audit sbx-01kahc5x3tf8b9n2m4r6v8w0ya -o json")

Kinds = Annotated[
    list[str] | None,
    typer.Option("--type", metavar="TYPE", help="Only these, as agent.tool_use or agent; more than once for more."),
]
Since = Annotated[str | None, typer.Option("--since", metavar="WHEN", help="Only from then on: 10m, 2h, or ISO 8601.")]


def events(  # one parameter per option
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(metavar="SANDBOX|TASK", help="Whose events.")],
    *,
    kinds: Kinds = None,
    since: Since = None,
    follow: Follow = False,
    project: Project = None,
    output: Output = Format.TABLE,
) -> int:
    """What happened, oldest first. As JSON, one event in each line."""
    from sandherd.client.cli import showing
    from sandherd.client.cli.choosing import wanted
    from sandherd.client.cli.talking import talk

    choice = wanted(name, kinds or [], since)
    show = showing.followed if follow else showing.stored
    return talk(ctx, lambda herd: show(herd, choice, output), project=project)


def trajectory(ctx: typer.Context, sandbox: SandboxName, project: Project = None, output: Output = Format.TABLE) -> int:
    """A picture of a run.

    What was done, when, and how long it took; edits with their diffs; heartbeats are only counted.
    """
    from sandherd.client.cli import showing
    from sandherd.client.cli.talking import talk

    return talk(ctx, lambda herd: showing.trajectory(herd, sandbox, output), project=project)


def logs(
    ctx: typer.Context,
    sandbox: SandboxName,
    *,
    follow: Follow = False,
    raw: Annotated[bool, typer.Option("--raw", help="With every control character, as the program wrote it.")] = False,
    project: Project = None,
    output: Output = Format.TABLE,
) -> int:
    """What a sandbox's terminal showed. As JSON, one piece in each line."""
    from sandherd.client.cli import showing
    from sandherd.client.cli.talking import talk

    return talk(ctx, lambda herd: showing.terminal(herd, sandbox, output, follow=follow, raw=raw), project=project)


def audit(
    ctx: typer.Context,
    sandbox: Annotated[
        str | None, typer.Argument(metavar="[SANDBOX]", help="One sandbox; else all.", callback=safe_sandbox)
    ] = None,
    project: Project = None,
    output: Output = Format.TABLE,
) -> int:
    """Whether all that was said is kept.

    The exit status is 1 if something is missing.
    """
    from sandherd.client.cli import showing
    from sandherd.client.cli.talking import talk

    return talk(ctx, lambda herd: showing.audit(herd, sandbox, output), project=project)
