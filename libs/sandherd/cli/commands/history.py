"""`sandherd overview`, `stats` and `transcript`: the state of a project, and what agents did."""

from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from sandherd.cli.options import Format, NamelessOutput, Output, Project, SandboxOrTask, example

if TYPE_CHECKING:
    from sandherd.client.herd import Herd

_SANDBOX = "sbx-01kahc5x3tf8b9n2m4r6v8w0ya"
OVERVIEW_EXAMPLE = example("sandherd overview", "sandherd overview --minutes 1440 -o json")
STATS_EXAMPLE = example("sandherd stats --by model --since 7d", "sandherd stats --by day --since 30d -o json")
TRANSCRIPT_EXAMPLE = example(f"sandherd transcript {_SANDBOX}", f"sandherd transcript {_SANDBOX} --no-results -o json")


class StatisticBy(StrEnum):
    """What statistics are grouped by."""

    TASK = "task"
    PROJECT = "project"
    HARNESS = "harness"
    MODEL = "model"
    DAY = "day"


def overview(
    ctx: typer.Context,
    *,
    minutes: Annotated[int, typer.Option("--minutes", help="How far rates go back.", min=1, max=44_640)] = 60,
    project: Project = None,
    output: NamelessOutput = Format.TABLE,
) -> int:
    """Show how many tasks and sandboxes are in each state, events and cost over time, and what needs a user.

    Of those that have ended, only those of the last --minutes are counted. `sandherd top` lists unfinished tasks.
    """
    from sandherd.cli.render.statistics import bucket_of, show_project
    from sandherd.cli.session import talk

    async def work(herd: "Herd") -> int:
        seconds = minutes * 60
        show_project(await herd.project_overview(seconds=seconds, bucket_seconds=bucket_of(seconds)), output)
        return 0

    return talk(ctx, work, project=project)


def stats(
    ctx: typer.Context,
    *,
    by: Annotated[StatisticBy, typer.Option("--by", help="What to group by.")] = StatisticBy.TASK,
    since: Annotated[
        str, typer.Option("--since", metavar="WHEN", help="Only what happened since then: 10m, 2h, 7d, or ISO 8601.")
    ] = "30d",
    limit: Annotated[int, typer.Option("--limit", "-n", help="Maximum number of groups.", min=1, max=1000)] = 100,
    project: Project = None,
    output: Output = Format.TABLE,
) -> int:
    """Show cost, tokens, turns, tool calls and errors, from the history; the most expensive first.

    Days are of UTC. By model, turns and calls belong to the model that their sandbox used last.
    """
    from sandherd.cli.parse.moments import moment
    from sandherd.cli.render.statistics import show_statistics
    from sandherd.cli.session import talk

    start = moment(since, datetime.now(UTC))

    async def work(herd: "Herd") -> int:
        show_statistics(await herd.statistics(by=by.value, since=start, limit=limit), by.value, output)
        return 0

    return talk(ctx, work, project=project)


def transcript(
    ctx: typer.Context,
    sandbox: SandboxOrTask,
    *,
    thoughts: Annotated[bool, typer.Option("--thoughts/--no-thoughts", help="Include thoughts.")] = True,
    results: Annotated[bool, typer.Option("--results/--no-results", help="Include results of calls.")] = True,
    project: Project = None,
    output: NamelessOutput = Format.TABLE,
) -> int:
    """Show what the agent in a sandbox and its users wrote, what it called, and what came back.

    As JSON, one entry per line. `sandherd events` has all events.
    """
    from sandherd.cli.names import sandbox_named
    from sandherd.cli.render import transcript as rendering
    from sandherd.cli.session import talk

    async def act(herd: "Herd", name: str) -> int:
        await rendering.show(herd.transcript(name, thoughts=thoughts, results=results), output)
        return 0

    return talk(ctx, sandbox_named(sandbox, act), project=project)
