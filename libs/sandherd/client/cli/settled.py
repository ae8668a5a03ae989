"""The settings as the command line, the environment and the stack's context settle them."""

import os

import typer

from sandherd.client.cli.options import Place
from sandherd.client.cli.talking import where
from sandherd.client.context import FROM_CONTEXT
from sandherd.client.errors import broken
from sandherd.contracts.errors import ContractError
from sandherd.settings import load

Row = tuple[str, str, str, str]


def settled(ctx: typer.Context, project: str | None) -> list[Row]:
    """`(setting, variable, value, source)` of each; secrets are masked. Raises `HerdError` for a value not allowed."""
    place = ctx.find_object(Place) or Place()
    given = {"nats_url": place.nats_url, "credentials": place.credentials, "home": place.home, "project": project}
    try:
        shown = load(given, os.environ, place.config).shown()
    except ContractError as error:
        raise broken(error) from None
    context = where(ctx, project=project)
    known = {"nats_url": context.nats_url, "credentials": str(context.credentials)}
    rows: list[Row] = []
    for name, variable, value, source in shown:
        from_stack = name in known and context.sources[name] == FROM_CONTEXT
        rows.append((name, variable, known[name] if from_stack else value, FROM_CONTEXT if from_stack else str(source)))
    return rows
