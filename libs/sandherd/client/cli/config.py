"""`sandherd config`: every setting, and where its value comes from."""

import typer

from sandherd.client.cli.options import Format, Output, Project, example, group

app = group("Settings: show.", "sandherd config show")
HEADER = ("SETTING", "VARIABLE", "VALUE", "SOURCE")


@app.callback()
def config() -> None:
    """Settings: show."""


@app.command("show", epilog=example("sandherd config show", "sandherd config show -o json"))
def show_config(ctx: typer.Context, project: Project = None, output: Output = Format.TABLE) -> int:
    """Every setting with its value and source.

    That is parameter, environment, yaml (the file in the first line), the stack's context, or default.
    """
    from sandherd.client.cli.printing import answer
    from sandherd.client.cli.settled import settled

    rows = settled(ctx, project)
    document = [dict(zip(("setting", "variable", "value", "source"), row, strict=True)) for row in rows]
    answer(output, document, HEADER, rows)
    return 0
