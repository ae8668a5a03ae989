"""Connects a command to the herd and runs it."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, nullcontext
from typing import Final

import typer

from sandherd.cli.all_projects import with_all_projects
from sandherd.cli.options import HerdLocation
from sandherd.cli.status_line import StatusLine
from sandherd.cli.stopped_stack import is_stopped
from sandherd.client.context import Context, Role, holder
from sandherd.client.errors import ServiceUnavailableError
from sandherd.client.herd import Herd
from sandherd.client.named_contexts import LOCAL
from sandherd.contracts.names import FLEET
from sandherd.contracts.requests import SandboxView, TaskView
from sandherd.lazy_imports import end_start
from sandherd.settings.client import ClientSettings
from sandherd.settings.loader import SettingSource
from sandherd.telemetry import logs

PATIENCE: Final = 5.0
"""How long to try to connect to the broker, in seconds. The default address, and that of a stopped stack, are tried
only once."""

_DEFAULT_PROJECT: Final = ClientSettings.model_fields["project"].default

Work = Callable[[Herd], Awaitable[int]]
"""A function that carries out a command through a connected `Herd`, and returns the exit status."""


def run_with_herd(
    ctx: typer.Context,
    work: Work,
    *,
    project: str | None = None,
    role: Role = "client",
    create: bool = False,
    activity: str | None = None,
) -> int:
    """Connect and do the work. Returns the exit status. Without `create`, the named project must exist.

    `activity` describes the work; a terminal shows it while the work takes long and prints nothing.
    """
    with StatusLine(activity) if activity is not None else nullcontext():
        context = command_context(ctx, project=project, role=role)
        return asyncio.run(_run_work(context, work, create=create, shows_activity=activity is not None))


def run_as_operator(ctx: typer.Context, work: Work, *, project: str | None = None, create: bool = False) -> int:
    """Like `run_with_herd`, as an operator: for all projects, unless one is named or the credential is for one."""
    return asyncio.run(
        _run_work(with_all_projects(command_context(ctx, project=project, role="operator")), work, create=create)
    )


def command_context(
    ctx: typer.Context, *, project: str | None = None, role: Role = "client", local: bool = False
) -> Context:
    """The address and credential of the herd: from the command line, the environment, a named context or the stack.

    With `local`, named contexts are not used.
    """
    location = ctx.find_object(HerdLocation) or HerdLocation()
    return Context.resolve(
        nats_url=location.nats_url,
        credentials=location.credentials,
        home=location.home,
        project=project,
        role=role,
        config=location.config,
        context=LOCAL if local else location.context,
    )


async def target_state(view: Awaitable[TaskView | SandboxView]) -> str | None:
    """The state of the task or sandbox that a command is for.

    None if the services are unavailable: the command is stored anyway. Raises `HerdError` (`not_found`) if there is no
    such task or sandbox.
    """
    try:
        return str((await view).state)
    except ServiceUnavailableError:
        return None


async def _run_work(context: Context, work: Work, *, create: bool = False, shows_activity: bool = False) -> int:
    """Connect and do the work. Unless `shows_activity`, a status line shows that it connects."""
    # The command itself reports errors to the user, in one line.
    logs.configure("client", "critical")
    is_configured = context.sources.get("nats_url", SettingSource.DEFAULT) != SettingSource.DEFAULT
    patience = PATIENCE if is_configured and not is_stopped(context) else 0
    async with AsyncExitStack() as stack:
        with nullcontext() if shows_activity else StatusLine(f"connecting to {context.nats_url}"):
            herd = await stack.enter_async_context(Herd.connect(context, patience=patience))
        end_start(short=True)
        if not create and _may_be_mistyped(context):
            from sandherd.client.projects import require_project  # only needed with --project

            await require_project(herd.connection.request, context.project)
        return await work(herd)


def _may_be_mistyped(context: Context) -> bool:
    """Whether the command line names a project that is neither the default nor that of the credential."""
    is_from_command_line = context.sources.get("project") == SettingSource.PARAMETER
    if not is_from_command_line or context.project in {FLEET, _DEFAULT_PROJECT}:
        return False
    return context.credentials is None or holder(context.credentials).project != context.project
