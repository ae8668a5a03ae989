"""Completes names in a shell: of tasks, sandboxes and other items of the herd, and of contexts.

It completes nothing if the herd does not respond within `SECONDS`.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import typer

if TYPE_CHECKING:
    from sandherd.client.context import Context
    from sandherd.client.herd import Herd

SECONDS: Final = 1.0
"""Maximum seconds that a user waits for the names."""
LIMIT: Final = 200
"""Maximum number of names of each kind that are requested."""
PREFIXES: Final = {"tasks": "task-", "sandboxes": "sbx-"}
"""By kind: the prefix of its names. `contracts.names` has them, too; its import would take longer than a completion."""


def task_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """The names of tasks, newest first."""
    return _names(ctx, incomplete, ("tasks",))


def sandbox_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """The names of sandboxes, newest first."""
    return _names(ctx, incomplete, ("sandboxes",))


def all_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """The names of sandboxes and tasks."""
    return _names(ctx, incomplete, ("sandboxes", "tasks"))


def batch_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """The batches of tasks, newest first."""
    return _names(ctx, incomplete, ("batches",))


def branch_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """The branches that tasks work on, the last changed first."""
    return _names(ctx, incomplete, ("branches",))


def project_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """The projects; with an operator's credential, all projects of the herd."""
    return _names(ctx, incomplete, ("projects",))


def schedule_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """The project's schedules."""
    return _names(ctx, incomplete, ("schedules",))


def secret_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """The project's named secrets."""
    return _names(ctx, incomplete, ("secrets",))


def secret_variables(ctx: typer.Context, incomplete: str) -> list[str]:
    """The values of `--secret VARIABLE[=NAME]`: the project's named secrets, after `VARIABLE=` if it was typed."""
    variable, equals, name = incomplete.rpartition("=")
    return [variable + equals + secret for secret in secret_names(ctx, name)]


def context_names(_ctx: typer.Context, incomplete: str) -> list[str]:
    """The names of the user's contexts, and `local`."""
    from sandherd.client.errors import HerdError
    from sandherd.client.named_contexts import LOCAL, contexts_file, read_contexts

    try:
        names = sorted(read_contexts(contexts_file()).contexts)
    except HerdError:
        names = []
    return [name for name in [*names, LOCAL] if name.startswith(incomplete)]


def part_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """The names of the parts of the local stack that have a log."""
    from sandherd.client.context import home_of
    from sandherd.client.errors import HerdError

    options = ctx.find_root().params
    try:
        logs = home_of(options.get("home"), options.get("config_file")) / "logs"
        return sorted(log.stem for log in logs.glob("*.log") if log.stem.startswith(incomplete))
    except (HerdError, OSError):
        return []


def _names(ctx: typer.Context, incomplete: str, lists: tuple[str, ...]) -> list[str]:
    import asyncio  # only needed for a completion

    possible = [kind for kind in lists if _may_begin(incomplete, PREFIXES.get(kind, ""))]
    try:
        names = asyncio.run(_request_names(ctx, possible)) if possible else []
    except Exception:  # noqa: BLE001  # an error message would be printed into the line that is being typed
        return []
    return [name for name in names if name.startswith(incomplete)]


def _may_begin(incomplete: str, prefix: str) -> bool:
    return incomplete.startswith(prefix) or prefix.startswith(incomplete)


async def _request_names(ctx: typer.Context, lists: list[str]) -> list[str]:
    import asyncio

    from sandherd.client.herd import Herd
    from sandherd.telemetry import logs

    logs.configure("client", logs.SILENT)
    async with asyncio.timeout(SECONDS), Herd.connect(_context(ctx, lists), patience=SECONDS) as herd:
        return [name for kind in lists for name in await _REQUESTS[kind](herd)]


def _context(ctx: typer.Context, lists: list[str]) -> "Context":
    from sandherd.client.context import Context

    lists_projects = lists == ["projects"]
    options = ctx.find_root().params  # the options before the command; a completion does not store them in `ctx.obj`
    fields: dict[str, Any] = {name: options.get(name) for name in ("nats_url", "credentials", "home", "context")}
    fields |= {"config": options.get("config_file"), "role": "operator" if lists_projects else "client"}
    if not lists_projects:
        return Context.resolve(**fields, project=ctx.params.get("project"))
    from sandherd.cli.all_projects import with_all_projects

    return with_all_projects(Context.resolve(**fields))


async def _sandboxes(herd: "Herd") -> list[str]:
    return [view.sandbox for view in (await herd.sandboxes(limit=LIMIT)).items]


async def _tasks(herd: "Herd") -> list[str]:
    return [view.task for view in (await herd.tasks(limit=LIMIT)).items]


async def _batches(herd: "Herd") -> list[str]:
    from sandherd.contracts.labels import BATCH_LABEL

    labels = [view.labels for view in (await herd.tasks(limit=LIMIT)).items]
    return list(dict.fromkeys(of_task[BATCH_LABEL] for of_task in labels if BATCH_LABEL in of_task))


async def _branches(herd: "Herd") -> list[str]:
    return list(dict.fromkeys(view.branch for view in (await herd.branches(limit=LIMIT)).branches))


async def _projects(herd: "Herd") -> list[str]:
    return [view.project for view in await herd.projects()]


async def _schedules(herd: "Herd") -> list[str]:
    return [view.name for view in (await herd.schedules()).schedules]


async def _secrets(herd: "Herd") -> list[str]:
    return [view.name for view in (await herd.secrets()).secrets]


_REQUESTS: Final[Mapping[str, Callable[["Herd"], Awaitable[list[str]]]]] = {
    "sandboxes": _sandboxes,
    "tasks": _tasks,
    "batches": _batches,
    "branches": _branches,
    "projects": _projects,
    "schedules": _schedules,
    "secrets": _secrets,
}
"""The functions that request names, by the kind of name."""
