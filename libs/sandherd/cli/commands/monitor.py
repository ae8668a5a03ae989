"""`sandherd monitor`: report on a project, show a sandbox, mute and unmute rules, and replay them."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sandherd.cli.options import Format, NamelessOutput, Output, Project, SandboxOrTask, example, group
from sandherd.cli.parse.durations import duration
from sandherd.contracts.states import SteeringStep

if TYPE_CHECKING:
    from sandherd.client.herd import Herd
    from sandherd.contracts.requests import MonitorView

app = group(
    "The monitor: report on a project, show a sandbox; mute and replay rules.", "sandherd monitor show task-one"
)
_SANDBOX = "sbx-01kahc5x3tf8b9n2m4r6v8w0ya"

Rule = Annotated[str, typer.Argument(metavar="RULE", help="A guardian rule, as shown by `monitor show`.")]
By = Annotated[
    str | None, typer.Option("--by", metavar="NAME", help="Name of the user who decides [default: your login name].")
]


@app.command("report", epilog=example("sandherd monitor report", "sandherd monitor report -o json"))
def report(ctx: typer.Context, *, project: Project = None, output: NamelessOutput = Format.TABLE) -> int:
    """Show how much the sandboxes of a project hinder each other, and which of them need a user.

    The report also has interventions with their outcomes, and the use of budgets. The coherence is 1 if no live sandbox
    is in an open finding. Findings are that two sandboxes edit the same file, that two tasks seem to be the same, or
    that the base or the task of a sandbox has changed. docs/conductor.md has the formula.
    """
    from sandherd.cli.herd_session import run_with_herd
    from sandherd.cli.render.monitor_report import show_report

    return run_with_herd(ctx, show_report(output), project=project)


@app.command("show", epilog=example(f"sandherd monitor show {_SANDBOX}", "sandherd monitor show task-one -o json"))
def show_sandbox(
    ctx: typer.Context, sandbox: SandboxOrTask, project: Project = None, output: NamelessOutput = Format.TABLE
) -> int:
    """Show the monitor's state of a sandbox.

    It has the phase, calls in flight, the use of its task's budgets, how far each rule is from its next step, findings,
    and interventions with outcomes.
    """
    from sandherd.cli.command_templates import show_one
    from sandherd.cli.name_prefixes import live_sandbox_of

    async def find(herd: "Herd") -> "MonitorView":
        return await herd.monitored(await live_sandbox_of(herd, sandbox))

    async def show(_herd: "Herd", view: "MonitorView") -> None:
        from sandherd.cli.render.monitor import show_monitored

        show_monitored(view)

    return show_one(ctx, find, key="sandbox", project=project, output=output, show=show)


@app.command("mute", epilog=example(f"sandherd monitor mute {_SANDBOX} loop --for 1h"))
def mute_rule(  # one parameter per option
    ctx: typer.Context,
    sandbox: SandboxOrTask,
    rule: Rule,
    *,
    time: Annotated[
        float | None,
        typer.Option(
            "--for", metavar="TIME", parser=duration, help="Time after which it is unmuted: 30m, 1h [default: never]."
        ),
    ] = None,
    by: By = None,
    project: Project = None,
    output: Output = Format.TABLE,
) -> int:
    """Mute a guardian rule for one sandbox: the monitor does not act on this rule there."""
    from sandherd.cli.command_templates import show_change
    from sandherd.cli.login_name import login_name
    from sandherd.cli.name_prefixes import live_sandbox_of

    async def change(herd: "Herd") -> "MonitorView":
        name = await live_sandbox_of(herd, sandbox)
        seconds = None if time is None else max(1, round(time))
        return await herd.mute_rule(name, rule, seconds=seconds, by=by or login_name())

    return show_change(ctx, change, lambda view: f"{rule} is muted for {view.sandbox}", project=project, output=output)


@app.command("unmute", epilog=example(f"sandherd monitor unmute {_SANDBOX} loop"))
def unmute_rule(  # one parameter per option
    ctx: typer.Context,
    sandbox: SandboxOrTask,
    rule: Rule,
    *,
    by: By = None,
    project: Project = None,
    output: Output = Format.TABLE,
) -> int:
    """Unmute a guardian rule for one sandbox."""
    from sandherd.cli.command_templates import show_change
    from sandherd.cli.login_name import login_name
    from sandherd.cli.name_prefixes import live_sandbox_of

    async def change(herd: "Herd") -> "MonitorView":
        return await herd.unmute_rule(await live_sandbox_of(herd, sandbox), rule, by=by or login_name())

    return show_change(
        ctx, change, lambda view: f"{rule} is evaluated again for {view.sandbox}", project=project, output=output
    )


@app.command(
    "replay",
    epilog=example(
        "sandherd monitor replay --since 2h --rule loop.repeats=3",
        "sandherd monitor replay session.jsonl --labels labels.json -o json",
    ),
)
def replay_rules(  # noqa: PLR0913  # one parameter per option
    ctx: typer.Context,
    files: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[FILE|-]…",
            help="Events as `sandherd events -o jsonl` writes them, also as .gz [default: stored events].",
        ),
    ] = None,
    *,
    sandbox: Annotated[
        str | None, typer.Option("--sandbox", metavar="SANDBOX", help="Only the stored events of this sandbox.")
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(
            "--since", metavar="WHEN", help="Only stored events since this time: 10m or 2h ago, or ISO 8601."
        ),
    ] = None,
    until: Annotated[
        str | None, typer.Option("--until", metavar="WHEN", help="Only stored events until this time.")
    ] = None,
    rules: Annotated[
        list[str] | None,
        typer.Option(
            "--rule",
            metavar="RULE.THRESHOLD=VALUE",
            help="Value of a threshold, or RULE=off. These options replace SANDHERD_RULES. Repeatable.",
        ),
    ] = None,
    max_step: Annotated[
        SteeringStep | None,
        typer.Option("--max-intervention", help="The strongest step of the guardian rules [default: as configured]."),
    ] = None,
    labels: Annotated[
        Path | None,
        typer.Option("--labels", metavar="FILE", help="Expected findings of each session, to show recall and false "
        "alarms. docs/detection.md has the format."),
    ] = None,
    project: Project = None,
    output: NamelessOutput = Format.TABLE,
) -> int:  # fmt: skip
    """Run the rules over stored events, and show their findings and decisions beside the recorded ones.

    Nothing is sent. The same events and rules give the same decisions.
    """
    from sandherd.cli.render.replay import show_replay

    return show_replay(
        ctx, files or [], sandbox=sandbox, times=(since, until), rules=(rules or [], max_step), labels=labels,
        project=project, output=output,
    )  # fmt: skip
