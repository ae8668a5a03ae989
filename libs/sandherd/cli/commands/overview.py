"""`sandherd top` and `costs`: show the unfinished tasks, and the costs of agents."""

from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from sandherd.cli.options import Format, Output, Project, example
from sandherd.cli.parse.list_options import Batch, LabelFilter

if TYPE_CHECKING:
    from sandherd.client.herd import Herd

TOP_EXAMPLE = example("sandherd top", "sandherd top --once -o json")
COSTS_EXAMPLE = example(
    "sandherd costs --since 7d",
    "sandherd costs --by day --since 2026-11-01",
    "sandherd costs --by label:team --since 30d -o json",
    "sandherd costs --batch batch-01kahc5x3tf8b9n2m4r6v8w0ya",
)


class CostGroup(StrEnum):
    """The group by which costs are added up."""

    PROJECT = "project"
    TASK = "task"
    DAY = "day"
    MODEL = "model"


def top(
    ctx: typer.Context,
    *,
    once: Annotated[bool, typer.Option("--once", help="Show it once and exit.")] = False,
    project: Project = None,
    output: Output = Format.TABLE,
) -> int:
    """Show the tasks that have not ended: those that need a user first, then the oldest.

    ACTIVITY is the time since the agent's last event. NEEDS is an approval to answer, a paused sandbox to resume, or a
    finding of the monitor. A terminal shows the table again after each change, until Ctrl-C. Without a terminal, and as
    JSON, it is shown once.
    """
    from sandherd.cli.herd_session import run_with_herd
    from sandherd.cli.render.overview import show_overview

    return run_with_herd(ctx, show_overview(output, once=once), project=project)


def costs(
    ctx: typer.Context,
    *,
    by: Annotated[
        str, typer.Option("--by", metavar="GROUP", help="task, day, model, project, or label:KEY.")
    ] = CostGroup.TASK.value,
    since: Annotated[
        str, typer.Option("--since", metavar="WHEN", help="Only costs since this time: 10m, 2h or 7d ago, or ISO 8601.")
    ] = "30d",
    label: LabelFilter = None,
    batch: Batch = None,
    limit: Annotated[int, typer.Option("--limit", "-n", help="Maximum number of groups.", min=1, max=1000)] = 100,
    project: Project = None,
    output: Output = Format.TABLE,
) -> int:
    """Show tokens and cost as agents have reported them, from the history; the most expensive first.

    Costs are in US dollars; JSON has millionths of a US dollar (`cost_micro_usd`). Days are in UTC. The cost of a task
    includes all its attempts.
    """
    from sandherd.cli.herd_session import run_with_herd
    from sandherd.cli.parse.labels import cost_group, selector
    from sandherd.cli.parse.times import moment
    from sandherd.cli.render.overview import show_costs

    group, key = cost_group(by, [member.value for member in CostGroup])
    labels, start = selector(label or [], batch), moment(since, datetime.now(UTC))

    async def work(herd: "Herd") -> int:
        usage = await herd.costs(by=group, label=key, labels=labels, since=start, limit=limit)
        show_costs(usage, by, output)
        return 0

    return run_with_herd(ctx, work, project=project)
