"""The settings as the command line, the environment and the stack's context settle them."""

import os

import typer

from sandherd.client.cli.options import Place
from sandherd.client.cli.talking import where
from sandherd.client.sources import FROM_CONTEXT, find
from sandherd.settings import CONFIG_VARIABLE

Row = tuple[str, str, str, str]


def settled(ctx: typer.Context, project: str | None) -> list[Row]:
    """`(setting, variable, value, source)` of each, the file that was read first; secrets are masked.

    Raises `HerdError` for a value that is not allowed.
    """
    place = ctx.find_object(Place) or Place()
    given = {"nats_url": place.nats_url, "credentials": place.credentials, "home": place.home, "project": project}
    found = find(given, os.environ, place.config)
    context = where(ctx, project=project)
    known = {"nats_url": context.nats_url, "credentials": str(context.credentials)}
    rows: list[Row] = [("config", CONFIG_VARIABLE, str(found.config or ""), found.config_source)]
    for name, variable, value, source in found.loaded.shown():
        from_stack = name in known and context.sources[name] == FROM_CONTEXT
        rows.append((name, variable, known[name] if from_stack else value, FROM_CONTEXT if from_stack else str(source)))
    return rows
