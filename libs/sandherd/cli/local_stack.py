"""Operations on the local stack. No other module of the CLI imports `sandherd.stack`."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

import typer

from sandherd import stack
from sandherd.cli.all_projects import with_all_projects
from sandherd.cli.herd_session import PATIENCE, command_context
from sandherd.cli.options import HerdLocation
from sandherd.cli.status_line import StatusLine
from sandherd.client.context import Context, home_of
from sandherd.client.errors import HerdError
from sandherd.client.herd import Herd
from sandherd.contracts.errors import Code
from sandherd.contracts.states import ApprovalState
from sandherd.progress_steps import OnStep
from sandherd.safe_home import UnsafeHomeError
from sandherd.telemetry import logs

__all__ = ["config_of", "on_stack", "pending_approvals", "plain_status", "stack"]

T = TypeVar("T")


def on_stack(
    ctx: typer.Context,
    work: Callable[[Path, OnStep], Coroutine[Any, Any, T]],
    show: Callable[[T], int],
    *,
    activity: str,
) -> int:
    """Run an operation on the local stack, and show its result. Returns the exit status. Raises `HerdError`."""
    logs.configure("client", "critical")
    location = ctx.find_object(HerdLocation) or HerdLocation()
    home = home_of(location.home, location.config)
    try:
        with StatusLine(activity) as activity_line:
            result = asyncio.run(work(home, activity_line.step))
    except stack.StackFailedError as error:
        raise HerdError.of(Code.UNAVAILABLE, str(error), remedy=error.remedy) from None
    except TimeoutError:
        raise HerdError.of(
            Code.UNAVAILABLE,
            "timed out waiting for the stack to be ready",
            remedy="see what is missing with `sandherd status`",
        ) from None
    except OSError as error:
        raise _unusable_home(home, error) from None
    return show(result)


def _unusable_home(home: Path, error: OSError) -> HerdError:
    path = error.filename or home
    default_remedy = "name a directory that this user may create and write, with `sandherd --home DIR` or SANDHERD_HOME"
    return HerdError.of(
        Code.UNAVAILABLE,
        f"the stack's home can't be used: {path}: {error.strerror or error}",
        field="home",
        remedy=error.remedy if isinstance(error, UnsafeHomeError) else default_remedy,
    )


def pending_approvals(ctx: typer.Context) -> int | None:
    """The number of approvals of all projects that wait for a user. None if the request fails."""
    try:
        return asyncio.run(_count_approvals(with_all_projects(command_context(ctx, role="operator", local=True))))
    except HerdError:
        return None


async def _count_approvals(context: Context) -> int:
    async with Herd.connect(context, patience=PATIENCE) as herd:
        return len((await herd.approvals(state=ApprovalState.PENDING, limit=1000)).approvals)


def config_of(ctx: typer.Context) -> Path | None:
    """The settings file given on the command line."""
    return (ctx.find_object(HerdLocation) or HerdLocation()).config


def plain_status(stack_status: stack.StackStatus) -> dict[str, Any]:
    """The status as JSON. It omits the database's address, which may contain a password."""
    plain = {name: value for name, value in asdict(stack_status).items() if name != "database_url"}
    return plain | {"home": str(stack_status.home), "ready": stack_status.ready}
