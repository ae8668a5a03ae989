"""Shows projects: their limits, defaults, use, cost and users."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final

from sandherd.cli.herd_session import Work
from sandherd.cli.options import Format
from sandherd.cli.render import console
from sandherd.cli.render.table import Column
from sandherd.client.errors import HerdError
from sandherd.client.herd import Herd
from sandherd.client.terminal_text import write_text
from sandherd.contracts.requests import LimitView, ProjectView

HEADER: Final = (
    "PROJECT",
    "TASKS",
    "PENDING",
    "SANDBOXES",
    "COST",
    Column("DEFAULTS", 2, cut=True),
    Column("UPDATED", 1),
)
_SCHEDULE_PREFIX: Final = "schedule "
"""The prefix of the user of a task that a schedule has submitted. The name of the schedule follows."""


def show_projects(output: Format) -> Work:
    """A function that lists the projects, each with its total cost."""

    async def work(herd: Herd) -> int:
        projects = await herd.projects()
        costs = await _costs(herd)
        known = costs or {}
        document = {"projects": [_document(view, {"cost_micro_usd": known.get(view.project)}) for view in projects]}
        console.print_list(output, document, HEADER, [_row(view, costs) for view in projects])
        return 0

    return work


def show_project(name: str, output: Format) -> Work:
    """A function that shows one project."""

    async def work(herd: Herd) -> int:
        view = await herd.project_view()
        midnight = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
        total, today = await _costs(herd) or {}, await _costs(herd, midnight) or {}
        costs = {"cost_micro_usd": total.get(name), "cost_today_micro_usd": today.get(name)}
        if output.is_json:
            console.print_document(output, _document(view, costs))
        elif output is Format.NAME:
            write_text(view.project)
        else:
            console.print_facts(project_facts(view, costs))
        return 0

    return work


async def _costs(herd: Herd, since: datetime | None = None) -> dict[str, int] | None:
    """The cost of each project since a time, or in total; None if the history can't be read."""
    try:
        usage = await herd.costs(by="project", since=since, limit=1000)
    except HerdError:
        return None
    return {group.group: group.cost_micro_usd for group in usage.groups if group.group is not None}


def _document(view: ProjectView, costs: Mapping[str, int | None]) -> dict[str, object]:
    return view.model_dump(mode="json") | dict(costs)


def _row(view: ProjectView, costs: Mapping[str, int] | None) -> list[object]:
    cost = None if costs is None else costs.get(view.project)
    return [
        view.project,
        _usage_text(view.tasks),
        view.pending,
        _usage_text(view.sandboxes),
        (None if costs is None else console.UNMETERED) if cost is None else console.money(cost),
        ", ".join(f"{name}={value}" for name, value in _default_values(view).items()) or None,
        view.updated_at,
    ]


def project_facts(view: ProjectView, costs: Mapping[str, int | None]) -> dict[str, object]:
    """The facts of a project, by their labels. Pure."""
    schedules = [name for name in view.users if name.startswith(_SCHEDULE_PREFIX)]
    defaults = _default_values(view)
    return {
        "project": view.project,
        "tasks": f"{_usage_text(view.tasks)} ({_limit_source(view.tasks)})",
        "sandboxes": f"{_usage_text(view.sandboxes)} ({_limit_source(view.sandboxes)})",
        "pending": view.pending,
        **costs,
        **{f"default {name}": str(value) for name, value in defaults.items()},
        "users": ", ".join(name for name in view.users if name not in schedules),
        "schedules": ", ".join(name.removeprefix(_SCHEDULE_PREFIX) for name in schedules),
        "created_at": view.created_at,
        "updated_at": view.updated_at,
        "updated_by": view.updated_by,
    }


def _default_values(view: ProjectView) -> dict[str, object]:
    """The defaults by name. The value of `repository` is its URL and its options."""
    values = view.defaults.model_dump(exclude_none=True)
    if view.defaults.repository is not None:
        options = dict(values["repository"])
        url = options.pop("url")
        values["repository"] = " ".join([url, *(f"{name}={value}" for name, value in options.items())])
    return values


def _usage_text(limit: LimitView) -> str:
    return f"{limit.used} of {limit.maximum}" if limit.maximum else f"{limit.used}, none may start"


def _limit_source(limit: LimitView) -> str:
    return "limit of the project" if limit.source == "project" else f"limit of the setting {limit.source}"
