"""A command's conversation with the herd."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Final

import typer

from sandherd.client.cli.options import Place
from sandherd.client.context import Context, Role, holder
from sandherd.client.errors import ServiceAwayError
from sandherd.client.herd import Herd
from sandherd.contracts.names import FLEET
from sandherd.contracts.requests import SandboxView, TaskView
from sandherd.telemetry import logs

PATIENCE: Final = 5.0
"""How long the broker is tried, in seconds."""

Work = Callable[[Herd], Awaitable[int]]


def talk(ctx: typer.Context, work: Work, *, project: str | None = None, role: Role = "client") -> int:
    """Connect and do the work. Returns the exit status."""
    return asyncio.run(_talk(where(ctx, project=project, role=role), work))


def talk_as_operator(ctx: typer.Context, work: Work, *, project: str | None = None) -> int:
    """The same as an operator: about all projects, unless one is named or the credential is for one."""
    return asyncio.run(_talk(everywhere(where(ctx, project=project, role="operator")), work))


def everywhere(context: Context) -> Context:
    """The place with all projects meant, where none is named and its credential is for all of them."""
    named = context.sources.get("project", "default") != "default"
    if named or context.credentials is None or holder(context.credentials).project is not None:
        return context
    return replace(context, project=FLEET, sources={**context.sources, "project": "credential"})


def where(ctx: typer.Context, *, project: str | None = None, role: Role = "client") -> Context:
    """Where the herd is: as the command line says, else as the environment or the stack does."""
    place = ctx.find_object(Place) or Place()
    return Context.resolve(
        nats_url=place.nats_url,
        credentials=place.credentials,
        home=place.home,
        project=project,
        role=role,
        config=place.config,
    )


async def standing(view: Awaitable[TaskView | SandboxView]) -> str | None:
    """The state of something that a command is about; None if nobody can tell, as the command is kept all the same.

    Raises `HerdError` (`not_found`) if there is no such thing.
    """
    try:
        return str((await view).state)
    except ServiceAwayError:
        return None


async def _talk(context: Context, work: Work) -> int:
    # A person is told what matters in one line by the command itself.
    logs.configure("client", "critical")
    async with Herd.connect(context, patience=PATIENCE) as herd:
        return await work(herd)
