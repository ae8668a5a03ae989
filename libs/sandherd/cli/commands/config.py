"""`sandherd config`: shows every setting with its value and source."""

import os

import typer

from sandherd.cli.options import Format, HerdLocation, Output, Project, example, group
from sandherd.cli.render.table import Column

Row = tuple[str, str, str, str]

app = group("Settings: show.", "sandherd config show")
HEADER = ("SETTING", Column("VARIABLE", 1), Column("VALUE", spills=True), "SOURCE")


@app.callback()
def config() -> None:
    """Settings: show."""


@app.command("show", epilog=example("sandherd config show", "sandherd config show -o json"))
def show_config(ctx: typer.Context, project: Project = None, output: Output = Format.TABLE) -> int:
    """Show every setting with its value and source.

    The source is `parameter` (a command-line option), `environment`, `yaml` (the settings file; the first row has its
    path), `context` (the stack's, or a named one), or `default`.
    """
    from sandherd.cli.render.console import print_list

    rows = _setting_rows(ctx, project)
    document = [dict(zip(("setting", "variable", "value", "source"), row, strict=True)) for row in rows]
    print_list(output, document, HEADER, rows)
    return 0


def _setting_rows(ctx: typer.Context, project: str | None) -> list[Row]:
    """A row `(setting, variable, value, source)` for each setting, after one for the settings file. Secrets are masked.

    Raises `HerdError` for an invalid value.
    """
    from sandherd.cli.herd_session import command_context
    from sandherd.client.context import FROM_CONTEXT, find_settings
    from sandherd.settings import CONFIG_VARIABLE

    location = ctx.find_object(HerdLocation) or HerdLocation()
    options = {
        "nats_url": location.nats_url,
        "credentials": location.credentials,
        "home": location.home,
        "project": project,
    }
    settings = find_settings(options, os.environ, location.config)
    context = command_context(ctx, project=project)
    context_values = {"nats_url": context.nats_url, "credentials": str(context.credentials), "project": context.project}
    rows: list[Row] = [("config", CONFIG_VARIABLE, str(settings.config or ""), settings.config_source)]
    for name, variable, value, source in settings.loaded.rows():
        is_from_context = name in context_values and context.sources[name].startswith(FROM_CONTEXT)
        rows.append(
            (name, variable, context_values[name], context.sources[name])
            if is_from_context
            else (name, variable, value, str(source))
        )
    return rows
