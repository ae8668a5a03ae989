"""`sandherd overview`, `stats`, `transcript`, `compare`, `search` and `replay`: show the work of agents."""

from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sandherd.cli.options import Format, NamelessOutput, Output, Project, SandboxOrTask, example

if TYPE_CHECKING:
    from sandherd.client.herd import Herd

_SANDBOX = "sbx-01kahc5x3tf8b9n2m4r6v8w0ya"
OVERVIEW_EXAMPLE = example("sandherd overview", "sandherd overview --minutes 1440 -o json")
STATS_EXAMPLE = example("sandherd stats --by model --since 7d", "sandherd stats --by day --since 30d -o json")
TRANSCRIPT_EXAMPLE = example(f"sandherd transcript {_SANDBOX}", f"sandherd transcript {_SANDBOX} --no-results -o json")
COMPARE_EXAMPLE = example(f"sandherd compare {_SANDBOX} sbx-01kahc5x3tf8b9n2m4r6v8w0yb")
SEARCH_EXAMPLE = example(
    "sandherd search 'connection refused'", "sandherd search 'src/app.py -test' --kind diff --since 7d -o json"
)
REPLAY_EXAMPLE = example(f"sandherd replay {_SANDBOX} --speed 10", f"sandherd replay {_SANDBOX} --cast session.cast")
_MAX_SPEED = 1_000_000.0


def _checked_entity(name: str | None) -> str | None:
    from sandherd.client.errors import checked_name

    return name if name is None else checked_name(name, "in")


class SearchedText(StrEnum):
    """The kind of text that is searched."""

    MESSAGE = "message"
    COMMAND = "command"
    DIFF = "diff"
    OUTPUT = "output"


class StatisticsGroup(StrEnum):
    """The group by which statistics are added up."""

    TASK = "task"
    PROJECT = "project"
    HARNESS = "harness"
    MODEL = "model"
    DAY = "day"


def overview(
    ctx: typer.Context,
    *,
    minutes: Annotated[
        int, typer.Option("--minutes", help="Minutes before now that are included.", min=1, max=44_640)
    ] = 60,
    project: Project = None,
    output: NamelessOutput = Format.TABLE,
) -> int:
    """Show how many tasks and sandboxes are in each state, events and cost over time, and which tasks need a user.

    Ended tasks and sandboxes are counted only if they ended in the last --minutes. `sandherd top` lists
    unfinished tasks.
    """
    from sandherd.cli.herd_session import run_with_herd
    from sandherd.cli.render.statistics import bucket_of, show_project

    async def work(herd: "Herd") -> int:
        seconds = minutes * 60
        show_project(await herd.project_overview(seconds=seconds, bucket_seconds=bucket_of(seconds)), output)
        return 0

    return run_with_herd(ctx, work, project=project)


def stats(
    ctx: typer.Context,
    *,
    by: Annotated[StatisticsGroup, typer.Option("--by", help="Group by which to add up.")] = StatisticsGroup.TASK,
    since: Annotated[
        str,
        typer.Option("--since", metavar="WHEN", help="Only events since this time: 10m, 2h or 7d ago, or ISO 8601."),
    ] = "30d",
    limit: Annotated[int, typer.Option("--limit", "-n", help="Maximum number of groups.", min=1, max=1000)] = 100,
    project: Project = None,
    output: Output = Format.TABLE,
) -> int:
    """Show cost, tokens, turns, tool calls and errors, from the history; the most expensive first.

    Days are of UTC. By model, turns and calls belong to the model that their sandbox used last.
    """
    from sandherd.cli.herd_session import run_with_herd
    from sandherd.cli.parse.times import moment
    from sandherd.cli.render.statistics import show_statistics

    start = moment(since, datetime.now(UTC))

    async def work(herd: "Herd") -> int:
        show_statistics(await herd.statistics(by=by.value, since=start, limit=limit), by.value, output)
        return 0

    return run_with_herd(ctx, work, project=project)


def transcript(
    ctx: typer.Context,
    sandbox: SandboxOrTask,
    *,
    thoughts: Annotated[bool, typer.Option("--thoughts/--no-thoughts", help="Include thoughts.")] = True,
    results: Annotated[bool, typer.Option("--results/--no-results", help="Include results of calls.")] = True,
    project: Project = None,
    output: NamelessOutput = Format.TABLE,
) -> int:
    """Show the messages of the agent in a sandbox and of its users, and the calls of tools with their results.

    As JSON, one entry per line. `sandherd events` has all events.
    """
    from sandherd.cli.herd_session import run_with_herd
    from sandherd.cli.name_prefixes import with_sandbox
    from sandherd.cli.render import transcript as rendering

    async def show(herd: "Herd", name: str) -> int:
        await rendering.show(herd.transcript(name, thoughts=thoughts, results=results), output)
        return 0

    return run_with_herd(ctx, with_sandbox(sandbox, show), project=project)


def compare(
    ctx: typer.Context,
    first: SandboxOrTask,
    second: SandboxOrTask,
    *,
    project: Project = None,
    output: NamelessOutput = Format.TABLE,
) -> int:
    """Show two sandboxes side by side: cost and time, types of events, tools, turns and files.

    SAME is `yes` if a file has the same content in both sandboxes now.
    """
    from sandherd.cli.herd_session import run_with_herd
    from sandherd.cli.name_prefixes import sandbox_of
    from sandherd.cli.render.comparison import show_comparison

    async def work(herd: "Herd") -> int:
        names = await sandbox_of(herd, first), await sandbox_of(herd, second)
        show_comparison(await herd.compare(*names), output)
        return 0

    return run_with_herd(ctx, work, project=project)


def search(
    ctx: typer.Context,
    text: Annotated[
        str, typer.Argument(metavar="TEXT", help="Words to find; words in double quotes have to be next to each other.")
    ],
    *,
    kinds: Annotated[
        list[SearchedText] | None, typer.Option("--kind", help="Only messages, commands, diffs or output; repeatable.")
    ] = None,
    within: Annotated[
        str | None,
        typer.Option(
            "--in",
            metavar="SANDBOX|TASK",
            help="Only this sandbox, or this task and its sandboxes.",
            callback=_checked_entity,
        ),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option("--since", metavar="WHEN", help="Only since this time: 10m, 2h or 7d ago, or ISO 8601."),
    ] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", help="Maximum number of hits.", min=1, max=1000)] = 20,
    project: Project = None,
    output: NamelessOutput = Format.TABLE,
) -> int:
    """Search messages, commands, diffs and output for words, newest first.

    A hit has all words; `-word` excludes a word, and `or` separates alternatives. Write text that begins with - after
    `--`. Case and punctuation do not matter. Results of calls are searched. The output of the terminal is not searched:
    it is stored only for some hours (`sandherd logs`).
    """
    from sandherd.cli.herd_session import run_with_herd
    from sandherd.cli.name_prefixes import full_name, kind_of
    from sandherd.cli.parse.times import moment
    from sandherd.cli.render.comparison import show_hits

    start = moment(since, datetime.now(UTC))

    async def work(herd: "Herd") -> int:
        scope: dict[str, Any] = {} if within is None else {kind_of(within): await full_name(herd, within)}
        hits = herd.search(text, limit=limit, kinds=[kind.value for kind in kinds or []], since=start, **scope)
        show_hits([hit async for hit in hits], output)
        return 0

    return run_with_herd(ctx, work, project=project)


def replay(
    ctx: typer.Context,
    sandbox: SandboxOrTask,
    *,
    speed: Annotated[
        float, typer.Option("--speed", help="Factor by which the session is played faster.", min=0.01, max=_MAX_SPEED)
    ] = 1.0,
    cast: Annotated[
        Path | None,
        typer.Option("--cast", metavar="FILE", help="Write an asciicast v2 file for asciinema, and play nothing."),
    ] = None,
    project: Project = None,
    output: NamelessOutput = Format.TABLE,
) -> int:
    """Play a session again: the output of its terminal, messages, calls and results, each at its time.

    Pauses are at most 2 s. The output of the terminal is stored only for some hours; later it is left out. Not to be
    confused with `sandherd monitor replay`, which evaluates rules, and `sandherd reread`, which reads events again.
    """
    from sandherd.cli import session_replay
    from sandherd.cli.herd_session import run_with_herd

    return run_with_herd(ctx, session_replay.replay(sandbox, speed=speed, cast=cast, output=output), project=project)
