"""A command's conversation with the herd."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

import typer

from sandherd.client.cli.options import Place
from sandherd.client.context import Context, Role
from sandherd.client.errors import ServiceAwayError
from sandherd.client.herd import Herd
from sandherd.contracts.requests import SandboxView, TaskView
from sandherd.telemetry import logs

PATIENCE: Final = 5.0
"""How long the broker is tried, in seconds."""

Work = Callable[[Herd], Awaitable[int]]


def talk(ctx: typer.Context, work: Work, *, project: str | None = None, role: Role = "client") -> int:
    """Connect and do the work. Returns the exit status."""
    return asyncio.run(_talk(where(ctx, project=project, role=role), work))


def where(ctx: typer.Context, *, project: str | None = None, role: Role = "client") -> Context:
    """Where the herd is: as the command line says, else as the environment or the stack does."""
    place = ctx.find_object(Place) or Place()
    return Context.resolve(
        nats_url=place.nats_url, credentials=place.credentials, home=place.home, project=project, role=role
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
