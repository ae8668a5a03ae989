"""Completes names of tasks and sandboxes in a shell, from the herd; nothing if it does not respond at once."""

from typing import Final

import typer

SECONDS: Final = 1.0
"""How long a user waits for the names."""
LIMIT: Final = 200
_PREFIXES: Final = {"tasks": "task-", "sandboxes": "sbx-"}


def task_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """The names of tasks, newest first."""
    return _names(ctx, incomplete, ("tasks",))


def sandbox_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """The names of sandboxes, newest first."""
    return _names(ctx, incomplete, ("sandboxes",))


def all_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """The names of sandboxes and tasks."""
    return _names(ctx, incomplete, ("sandboxes", "tasks"))


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
    wanted = [one for one in lists if _may_begin(incomplete, _PREFIXES[one])]
    import asyncio  # only needed for a completion

    try:
        names = asyncio.run(_listed(ctx, wanted)) if wanted else []
    except Exception:  # noqa: BLE001  # whatever is wrong: an error would be printed into the line that is being typed
        return []
    return [name for name in names if name.startswith(incomplete)]


def _may_begin(incomplete: str, prefix: str) -> bool:
    return incomplete.startswith(prefix) or prefix.startswith(incomplete)


async def _listed(ctx: typer.Context, lists: list[str]) -> list[str]:
    import asyncio

    from sandherd.client.context import Context
    from sandherd.client.herd import Herd
    from sandherd.telemetry import logs

    logs.configure("client", logs.SILENT)
    options = ctx.find_root().params  # of the options before the command; no command was called that has stored them
    context = Context.resolve(
        nats_url=options.get("nats_url"),
        credentials=options.get("credentials"),
        home=options.get("home"),
        config=options.get("config_file"),
        context=options.get("context"),
        project=ctx.params.get("project"),
    )
    names: list[str] = []
    async with asyncio.timeout(SECONDS), Herd.connect(context, patience=SECONDS) as herd:
        if "sandboxes" in lists:
            names += [view.sandbox for view in (await herd.sandboxes(limit=LIMIT)).items]
        if "tasks" in lists:
            names += [view.task for view in (await herd.tasks(limit=LIMIT)).items]
    return names
