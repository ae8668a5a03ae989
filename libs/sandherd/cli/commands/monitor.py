"""`sandherd monitor`: report."""

import typer

from sandherd.cli.options import Format, NamelessOutput, Project, example, group

app = group("What the monitor sees: report.", "sandherd monitor report")


@app.command("report", epilog=example("sandherd monitor report", "sandherd monitor report -o json"))
def report(ctx: typer.Context, *, project: Project = None, output: NamelessOutput = Format.TABLE) -> int:
    """Show how much the sandboxes of a project hinder each other, and which of them need a user.

    The coherence is 1 if no live sandbox is in an open finding: a file that two of them edit, tasks that seem to be the
    same, or a base or task that has changed underneath one. docs/conductor.md has its formula.
    """
    from sandherd.cli.render.monitor_report import show_report
    from sandherd.cli.session import talk

    return talk(ctx, show_report(output), project=project)
