"""The one place where the client knows the local stack."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

import typer

from sandherd import stack
from sandherd.client.cli.options import Place
from sandherd.client.cli.talking import where
from sandherd.client.errors import HerdError
from sandherd.contracts.errors import Code
from sandherd.telemetry import logs

__all__ = ["config_of", "on_stack", "plain_status", "stack"]

T = TypeVar("T")


def on_stack(ctx: typer.Context, work: Callable[[Path], Coroutine[Any, Any, T]], show: Callable[[T], int]) -> int:
    """Do something with the stack of this home, and show what came of it. Returns the exit status."""
    logs.configure("client", "critical")
    home = where(ctx).home
    try:
        return show(asyncio.run(work(home)))
    except stack.StackFailedError as error:
        raise HerdError.of(Code.UNAVAILABLE, str(error), remedy=error.remedy) from None
    except TimeoutError:
        raise HerdError.of(
            Code.UNAVAILABLE, "the stack is not ready in time", remedy="see what is missing with `sandherd status`"
        ) from None


def config_of(ctx: typer.Context) -> Path | None:
    """The settings file that the command line names."""
    return (ctx.find_object(Place) or Place()).config


def plain_status(found: stack.StackStatus) -> dict[str, Any]:
    """A status as JSON has it. The database's address is left out: it may hold a password."""
    plain = {name: value for name, value in asdict(found).items() if name != "database_url"}
    return plain | {"home": str(found.home), "ready": found.ready}
